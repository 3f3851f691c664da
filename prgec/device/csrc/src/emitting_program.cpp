#include "emitting_program.h"

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "delegates.h"
#include "fail.h"
#include "json.h"
#include "program_checksums.h"
#include "program_file.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::runtime::EValue;

constexpr char kMethod[] = "emit";
constexpr uint32_t kMinTokens = 2;
constexpr int64_t kMaxSize = int64_t{1} << 20;

bool keep_floats(const EValue& value, size_t numel, std::vector<float>& to) {
  if (!value.isTensor() || value.toTensor().scalar_type() != ScalarType::Float ||
      static_cast<size_t>(value.toTensor().numel()) != numel) {
    return false;
  }
  to.resize(numel);
  std::memcpy(to.data(), value.toTensor().const_data_ptr<float>(), numel * sizeof(float));
  return true;
}

} // namespace

// Named here alone: ExecuTorch's header is large.
class EmittingProgram::Methods : public Module {
 public:
  using Module::Module;
};

EmittingProgram::EmittingProgram(std::string path) : path_(std::move(path)) {}
EmittingProgram::~EmittingProgram() = default;

Result<std::unique_ptr<EmittingProgram>> EmittingProgram::open(const std::string& path, bool verify) {
  std::unique_ptr<EmittingProgram> program(new EmittingProgram(path));
  PRGE_TRY(check_envelope(path));
  std::optional<ProgramChecksums> checksums;
  if (verify) {
    auto found = ProgramChecksums::read(path);
    PRGE_TRY(found.error());
    checksums = std::move(*found);
    PRGE_TRY(checksums ? checksums->check(path) : Error::Ok);
  }
  PRGE_TRY(program->load({}));
  PRGE_TRY(program->read_constants());
  if (verify && program->has_checksums_ && !checksums) {
    return fail(
        Error::InvalidProgram, "the program has lost its checksums (%s). Hint: copy or compile it again", path.c_str());
  }
  if (!program->data_sha256_.empty()) {
    const auto data_path = find_data(path, program->data_sha256_);
    PRGE_TRY(data_path.error());
    PRGE_TRY(checksums ? checksums->check_data(*data_path) : Error::Ok);
    PRGE_TRY(program->load(*data_path));
  }
  PRGE_TRY(check_delegates(*program->methods_, kMethod, program->backend_, path));
  if (program->methods_->load_method(kMethod) != Error::Ok) {
    return fail(
        Error::InvalidProgram, "cannot load method %s (%s). Hint: it was compiled for backend %s", kMethod,
        path.c_str(), program->backend_.c_str());
  }
  return program;
}

Error EmittingProgram::load(const std::string& data_path) {
  methods_ = std::make_unique<Methods>(
      path_, data_path.empty() ? std::vector<std::string>() : std::vector{data_path}, Module::LoadMode::Mmap);
  const Error error = methods_->load(executorch::runtime::Program::Verification::InternalConsistency);
  return error == Error::Ok
      ? Error::Ok
      : fail(Error::InvalidProgram, "the program is damaged (%s): %s", path_.c_str(), to_string(error));
}

Error EmittingProgram::read_constants() {
  const auto version = methods_->get("prgec_contract_version");
  const int64_t spoken = version.ok() && version->isInt() ? version->toInt() : 0;
  if (spoken != kSideContractVersion) {
    return fail(
        Error::InvalidProgram, "the program speaks contract version %lld; prge_emit runs %lld, of --method side (%s)",
        static_cast<long long>(spoken), static_cast<long long>(kSideContractVersion), path_.c_str());
  }
  const auto text = methods_->get("prgec_manifest");
  const auto tokenizer = methods_->get("prgec_tokenizer");
  if (!text.ok() || !text->isString() || !tokenizer.ok() || !tokenizer->isTensor() ||
      tokenizer->toTensor().scalar_type() != ScalarType::Byte) {
    return fail(Error::InvalidProgram, "not made by prgec compile --method side (%s)", path_.c_str());
  }
  const auto& bytes = tokenizer->toTensor();
  tokenizer_sha256_ = Sha256().update(bytes.const_data_ptr<uint8_t>(), bytes.nbytes()).finish();
  return read_manifest(std::string(text->toString().data(), text->toString().size()));
}

Error EmittingProgram::read_manifest(const std::string& text) {
  Json json;
  const bool is_json = Json::parse(text, json);
  int64_t num_labels = 0;
  const struct {
    const char* name;
    int64_t low, high;
    int64_t* field;
  } sizes[] = {
      {"batch_size", 1, kMaxSize, &batch_size_},
      {"seq_len", 1, kMaxSize, &seq_len_},
      {"vocab_size", 1, int64_t{1} << 31, &vocab_size_},
      {"pad_token_id", 0, int64_t{1} << 31, &pad_token_id_},
      {"num_blocks", 1, 1 << 16, &num_blocks_},
      {"hidden_size", 1, kMaxSize, &width_},
      {"num_labels", 1, 1, &num_labels},
  };
  for (const auto& size : sizes) {
    if (!is_json || !json[size.name].integer(size.low, size.high, *size.field)) {
      return fail(Error::InvalidProgram, "the program's manifest has no usable %s: compile it again", size.name);
    }
  }
  backend_ = json["backend"].text;
  data_sha256_ = json["data_sha256"].text;
  is_dynamic_ = json["dynamic_seq_len"].kind == Json::Kind::True;
  has_checksums_ = json["has_checksums"].kind == Json::Kind::True;
  std::string parts = "[";
  for (const char* name : {"base_sha256", "backend", "soc", "pipeline"}) {
    parts += parts.size() > 1 ? ", " : "";
    append_quoted(parts, json[name].text);
  }
  parts += "]";
  hash_ = Sha256().update(parts.data(), parts.size()).finish().hex();
  return Error::Ok;
}

Error EmittingProgram::check(const Rows& rows) const {
  if (std::memcmp(rows.tokenizer_sha256_, tokenizer_sha256_.bytes, sizeof(tokenizer_sha256_.bytes)) != 0) {
    return fail(
        Error::InvalidExternalData,
        "%s: the rows were made with another tokenizer. Hint: make them again with prgec tokenize", rows.path_.c_str());
  }
  if (rows.max_tokens_ > seq_len_ || rows.max_labels_ > 1 || rows.vocab_size_ > vocab_size_) {
    return fail(
        Error::InvalidExternalData,
        "%s: the rows were made for a larger program. Hint: make them again with prgec tokenize", rows.path_.c_str());
  }
  return Error::Ok;
}

Error EmittingProgram::run(const std::vector<Row>& rows, const float*& acts, const float*& logits) {
  uint32_t longest = kMinTokens;
  for (const Row& row : rows) {
    longest = std::max(longest, row.num_tokens);
  }
  const auto length = static_cast<size_t>(is_dynamic_ ? longest : seq_len_);
  const auto size = static_cast<size_t>(batch_size_);
  tokens_.assign(size * length, pad_token_id_);
  label_pos_.assign(size, 0);
  for (size_t n = 0; n < size; ++n) {
    const Row& row = rows[std::min(n, rows.size() - 1)];
    std::copy_n(row.tokens, row.num_tokens, &tokens_[n * length]);
    label_pos_[n] = row.label_pos[0];
  }
  const auto B = static_cast<SizesType>(size);
  auto tokens = from_blob(tokens_.data(), {B, static_cast<SizesType>(length)}, ScalarType::Long);
  auto label_pos = from_blob(label_pos_.data(), {B, 1}, ScalarType::Long);
  const auto outputs = methods_->execute(kMethod, std::vector<EValue>{*tokens, *label_pos});
  if (!outputs.ok()) {
    return fail(Error::InvalidProgram, "the program failed to run (%s): %s", path_.c_str(), to_string(outputs.error()));
  }
  if (outputs->size() != 2 || !keep_floats((*outputs)[0], size * static_cast<size_t>(num_blocks_ * width_), acts_)) {
    return fail(Error::InvalidProgram, "method %s does not follow the contract (%s)", kMethod, path_.c_str());
  }
  // Classes of a classifier are fewer than its tokens.
  const auto count = static_cast<size_t>((*outputs)[1].isTensor() ? (*outputs)[1].toTensor().numel() : 0);
  if (count % size != 0 || count == 0 || !keep_floats((*outputs)[1], count, logits_)) {
    return fail(Error::InvalidProgram, "method %s does not follow the contract (%s)", kMethod, path_.c_str());
  }
  num_logits_ = static_cast<int64_t>(count / size);
  acts = acts_.data();
  logits = logits_.data();
  return Error::Ok;
}

} // namespace prge
