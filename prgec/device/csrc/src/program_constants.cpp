// Reads the constants of a .pte before any of it runs.
#include <cstring>
#include <string_view>
#include <utility>

#include "fail.h"
#include "json.h"
#include "program_methods.h"
#include "tokenizer_settings.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::EValue;

constexpr char kVersion[] = "prgec_contract_version";
constexpr char kManifest[] = "prgec_manifest";
constexpr char kTokenizer[] = "prgec_tokenizer";
constexpr char kLoraA[] = "prgec_lora_a";

// Finds a tensor of a safetensors file; false where it is missing or lies outside of the data.
bool find_matrix(const Json& entry, const uint8_t* data, int64_t size, StateTensor& out) {
  const auto& sizes = entry["shape"].items;
  const auto& offsets = entry["data_offsets"].items;
  int64_t start = 0, end = 0;
  out.shape.resize(sizes.size());
  bool is_good = entry["dtype"].text == "F32" && sizes.size() == 2 && offsets.size() == 2;
  for (size_t i = 0; is_good && i < sizes.size(); ++i) {
    is_good = sizes[i].integer(1, int64_t{1} << 31, out.shape[i]);
  }
  is_good = is_good && out.shape[0] <= size / out.shape[1] && offsets[0].integer(0, size, start) &&
      offsets[1].integer(start, size, end) && end - start == out.numel() * 4;
  // Headers are padded, so that floats lie where they can be read.
  is_good = is_good && reinterpret_cast<uintptr_t>(data + start) % alignof(float) == 0;
  out.data = is_good ? const_cast<float*>(reinterpret_cast<const float*>(data + start)) : nullptr;
  return is_good;
}

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
  eos_id_ = find_eos_id(bytes.const_data_ptr<uint8_t>(), bytes.nbytes());
  for (const char* name : {kVersion, kManifest, kTokenizer}) {
    methods_->unload_method(name);
  }
  return Error::Ok;
}

Result<std::vector<StateTensor>> Program::stored_lora_a() const {
  std::vector<StateTensor> found;
  if (manifest_.a_sha256.empty()) {
    return found;
  }
  const auto damaged = [this] {
    return fail(Error::InvalidProgram, "the program lacks the A matrices its manifest names (%s)", path_.c_str());
  };
  const auto value = methods_->get(kLoraA);
  if (!value.ok() || !value->isTensor() || value->toTensor().scalar_type() != ScalarType::Byte) {
    return damaged();
  }
  const auto* bytes = value->toTensor().const_data_ptr<uint8_t>();
  const auto size = static_cast<uint64_t>(value->toTensor().nbytes());
  uint64_t header_bytes = 0;
  Json header;
  if (size >= sizeof(header_bytes)) {
    std::memcpy(&header_bytes, bytes, sizeof(header_bytes));
  }
  const auto* text = reinterpret_cast<const char*>(bytes) + sizeof(header_bytes);
  if (size < sizeof(header_bytes) || header_bytes > size - sizeof(header_bytes) ||
      !Json::parse(std::string_view(text, header_bytes), header)) {
    return damaged();
  }
  const uint64_t begin = sizeof(header_bytes) + header_bytes;
  for (const Site& site : manifest_.sites) {
    StateTensor matrix;
    matrix.name = site.name + ".lora_A";
    if (!find_matrix(header[matrix.name], bytes + begin, static_cast<int64_t>(size - begin), matrix)) {
      return damaged();
    }
    found.push_back(std::move(matrix));
  }
  return found;
}

} // namespace prge
