// What a .pte says of itself before any of it runs.
#include <string_view>
#include <utility>

#include "fail.h"
#include "program_methods.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::EValue;

constexpr char kVersion[] = "prgec_contract_version";
constexpr char kManifest[] = "prgec_manifest";
constexpr char kTokenizer[] = "prgec_tokenizer";

} // namespace

Error Program::read_constants() {
  const auto constant = [this](const char* name) -> Result<EValue> {
    auto value = methods_->get(name);
    if (!value.ok()) {
      return fail(Error::InvalidProgram, "not made by prgec compile: it has no %s (%s)", name, path_.c_str());
    }
    return value;
  };
  auto version = constant(kVersion);
  PRGE_TRY(version.error());
  const int64_t spoken = version->isInt() ? version->toInt() : 0;
  if (spoken != kContractVersion && spoken != kGradientContractVersion) {
    return fail(
        Error::InvalidProgram, "the program speaks contract version %lld; this driver speaks %lld and %lld (%s)",
        static_cast<long long>(spoken), static_cast<long long>(kContractVersion),
        static_cast<long long>(kGradientContractVersion), path_.c_str());
  }
  auto text = constant(kManifest);
  PRGE_TRY(text.error());
  if (!text->isString()) {
    return fail(Error::InvalidProgram, "the program's manifest is not text (%s)", path_.c_str());
  }
  auto manifest = Manifest::parse(std::string_view(text->toString().data(), text->toString().size()));
  PRGE_TRY(manifest.error());
  manifest_ = std::move(*manifest);
  auto tokenizer = constant(kTokenizer);
  PRGE_TRY(tokenizer.error());
  if (!tokenizer->isTensor() || tokenizer->toTensor().scalar_type() != ScalarType::Byte) {
    return fail(Error::InvalidProgram, "the program's tokenizer is not a tensor of bytes (%s)", path_.c_str());
  }
  const Tensor& bytes = tokenizer->toTensor();
  tokenizer_sha256_ = Sha256().update(bytes.const_data_ptr<uint8_t>(), bytes.nbytes()).finish();
  for (const char* name : {kVersion, kManifest, kTokenizer}) {
    methods_->unload_method(name);
  }
  return Error::Ok;
}

} // namespace prge
