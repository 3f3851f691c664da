#include "program.h"

#include <executorch/extension/module/module.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fail.h"
#include "program_file.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

// A dynamic sequence axis is exported with this lower bound.
constexpr int32_t kMinTokens = 2;

TensorPtr ints(std::vector<int64_t>& data, int64_t rows, int64_t columns) {
  return from_blob(data.data(), {static_cast<SizesType>(rows), static_cast<SizesType>(columns)}, ScalarType::Long);
}

// `scalar` outlives the call it is an input of.
template <typename T>
TensorPtr scalar(T& value, ScalarType type) {
  return from_blob(&value, {}, type);
}

} // namespace

// Module keeps its methods to itself; the state lives in one of them.
class Program::Methods : public Module {
 public:
  // Methods share their arenas, or each would train a copy of its own.
  Methods(const std::string& path, std::vector<std::string> data)
      : Module(path, std::move(data), LoadMode::Mmap, nullptr, nullptr, nullptr, /*share_memory_arenas=*/true) {}

  Result<Tensor> attribute(const std::string& name) {
    return methods_.at("forward").method->get_attribute(name);
  }
};

Program::Program() = default;
Program::~Program() = default;

Result<std::unique_ptr<Program>> Program::open(const std::string& path) {
  PRGE_TRY(check_envelope(path));
  std::unique_ptr<Program> program(new Program());
  program->path_ = path;
  PRGE_TRY(program->load({}));
  PRGE_TRY(program->read_constants());
  if (!program->manifest_.data_sha256.empty()) {
    const auto data_path = find_data(path, program->manifest_.data_sha256);
    PRGE_TRY(data_path.error());
    PRGE_TRY(program->load(*data_path));
  }
  PRGE_TRY(program->load_methods());
  PRGE_TRY(program->find_state());
  const Manifest& m = program->manifest_;
  program->tokens_.resize(static_cast<size_t>(m.num_rows() * m.seq_len));
  program->label_pos_.resize(static_cast<size_t>(m.num_rows() * m.num_labels));
  program->targets_.resize(static_cast<size_t>(m.num_rows() * m.num_labels));
  program->g_.resize(static_cast<size_t>(m.q));
  program->losses_.resize(static_cast<size_t>(m.num_rows()));
  if (m.prefix == Prefix::Method) {
    program->hidden_.resize(static_cast<size_t>(m.batch_size * m.seq_len * m.hidden_size));
  }
  return program;
}

Error Program::load(const std::string& data_path) {
  methods_.reset(new Methods(path_, data_path.empty() ? std::vector<std::string>() : std::vector{data_path}));
  const auto checked = executorch::runtime::Program::Verification::InternalConsistency;
  const Error error = methods_->load(checked);
  return error == Error::Ok
      ? Error::Ok
      : fail(Error::InvalidProgram, "the program is damaged (%s): %s", path_.c_str(), to_string(error));
}

Error Program::read_constants() {
  const auto constant = [this](const char* name) -> Result<EValue> {
    auto value = methods_->get(name);
    if (!value.ok()) {
      return fail(Error::InvalidProgram, "not made by prgec compile: it has no %s (%s)", name, path_.c_str());
    }
    return value;
  };
  auto version = constant("prgec_contract_version");
  if (!version.ok()) {
    return version.error();
  }
  if (!version->isInt() || version->toInt() != kContractVersion) {
    return fail(Error::InvalidProgram, "the program speaks another contract version (%s)", path_.c_str());
  }
  auto text = constant("prgec_manifest");
  if (!text.ok()) {
    return text.error();
  }
  if (!text->isString()) {
    return fail(Error::InvalidProgram, "the program's manifest is not text (%s)", path_.c_str());
  }
  auto manifest = Manifest::parse(std::string_view(text->toString().data(), text->toString().size()));
  if (!manifest.ok()) {
    return manifest.error();
  }
  manifest_ = std::move(*manifest);
  auto tokenizer = constant("prgec_tokenizer");
  if (!tokenizer.ok()) {
    return tokenizer.error();
  }
  if (!tokenizer->isTensor() || tokenizer->toTensor().scalar_type() != ScalarType::Byte) {
    return fail(Error::InvalidProgram, "the program's tokenizer is not a tensor of bytes (%s)", path_.c_str());
  }
  const Tensor& bytes = tokenizer->toTensor();
  tokenizer_sha256_ = Sha256().update(bytes.const_data_ptr<uint8_t>(), bytes.nbytes()).finish();
  for (const char* name : {"prgec_contract_version", "prgec_manifest", "prgec_tokenizer"}) {
    methods_->unload_method(name);
  }
  return Error::Ok;
}

Error Program::load_methods() {
  const bool has_prefix = manifest_.prefix == Prefix::Method;
  const std::pair<const char*, size_t> methods[] = {{"forward", has_prefix ? 9 : 8}, {"apply", 4}, {"prefix", 1}};
  for (const auto& [name, num_inputs] : methods) {
    if ((std::strcmp(name, "prefix") == 0 && !has_prefix) ||
        (std::strcmp(name, "apply") == 0 && manifest_.returns_state)) {
      continue;
    }
    if (const Error error = methods_->load_method(name); error != Error::Ok) {
      return fail(
          Error::InvalidProgram, "cannot load method %s (%s): %s. Hint: it was compiled for backend %s", name,
          path_.c_str(), to_string(error), manifest_.backend.c_str());
    }
    const auto meta = methods_->method_meta(name);
    if (!meta.ok() || meta->num_inputs() != num_inputs) {
      return fail(Error::InvalidProgram, "method %s does not follow the contract (%s)", name, path_.c_str());
    }
  }
  return Error::Ok;
}

Error Program::find_state() {
  for (const Site& site : manifest_.sites) {
    SiteState state;
    state.name = site.state_name();
    state.copies = manifest_.is_dual ? 2 * manifest_.q : 1;
    state.rank = manifest_.rank;
    state.out = site.out_features;
    if (manifest_.returns_state) {
      returned_.emplace_back(static_cast<size_t>(state.numel()), 0.0f);
      state.data = returned_.back().data();
      sites_.push_back(std::move(state));
      continue;
    }
    const auto tensor = methods_->attribute(state.name);
    if (!tensor.ok() || tensor->scalar_type() != ScalarType::Float || tensor->numel() != state.copies * state.numel()) {
      return fail(
          Error::InvalidProgram, "the program has no state %s as its manifest says (%s)", state.name.c_str(),
          path_.c_str());
    }
    state.data = tensor->mutable_data_ptr<float>();
    sites_.push_back(std::move(state));
  }
  return Error::Ok;
}

void Program::fill(const std::vector<Row>& rows) {
  const Manifest& m = manifest_;
  uint32_t longest = kMinTokens;
  for (const Row& row : rows) {
    longest = std::max(longest, row.num_tokens);
  }
  num_tokens_ = static_cast<int32_t>(m.is_dynamic ? longest : m.seq_len);
  std::fill(tokens_.begin(), tokens_.end(), m.pad_token_id);
  std::fill(label_pos_.begin(), label_pos_.end(), 0);
  std::fill(targets_.begin(), targets_.end(), kIgnoreTarget);
  for (size_t n = 0; n < rows.size(); ++n) {
    const Row& row = rows[n];
    const size_t labels_at = n * static_cast<size_t>(m.num_labels);
    std::copy_n(row.tokens, row.num_tokens, &tokens_[n * static_cast<size_t>(num_tokens_)]);
    std::copy_n(row.label_pos, row.num_labels, &label_pos_[labels_at]);
    std::copy_n(row.targets, row.num_labels, &targets_[labels_at]);
  }
}

Result<const float*> Program::forward(const float* g, double lr, double eps, int64_t seed, uint64_t step) {
  const Manifest& m = manifest_;
  std::copy_n(g, m.q, g_.begin());
  lr_ = static_cast<float>(lr), eps_ = static_cast<float>(eps);
  seed_ = seed, step_ = static_cast<int64_t>(step);
  TensorPtr tensors[] = {
      ints(tokens_, m.num_rows(), num_tokens_),
      ints(label_pos_, m.num_rows(), m.num_labels),
      ints(targets_, m.num_rows(), m.num_labels),
      from_blob(g_.data(), {static_cast<SizesType>(m.q)}, ScalarType::Float),
      scalar(lr_, ScalarType::Float),
      scalar(eps_, ScalarType::Float),
      scalar(seed_, ScalarType::Long),
      scalar(step_, ScalarType::Long),
      nullptr};
  std::vector<EValue> inputs;
  inputs.reserve(9);
  if (m.prefix == Prefix::Method) {
    PRGE_TRY(run_prefix());
    tensors[8] = from_blob(
        hidden_.data(), {static_cast<SizesType>(m.batch_size), num_tokens_, static_cast<SizesType>(m.hidden_size)},
        ScalarType::Float);
  }
  for (const TensorPtr& tensor : tensors) {
    if (tensor) {
      inputs.emplace_back(*tensor);
    }
  }
  const auto outputs = methods_->execute("forward", inputs);
  if (!outputs.ok()) {
    return fail(Error::InvalidProgram, "the program failed to run (%s): %s", path_.c_str(), to_string(outputs.error()));
  }
  if (outputs->empty() || !(*outputs)[0].isTensor() || (*outputs)[0].toTensor().numel() != m.num_rows() ||
      (*outputs)[0].toTensor().scalar_type() != ScalarType::Float) {
    return fail(Error::InvalidProgram, "forward does not return one f32 loss a row (%s)", path_.c_str());
  }
  std::copy_n((*outputs)[0].toTensor().const_data_ptr<float>(), m.num_rows(), losses_.begin());
  PRGE_TRY(keep_state(*outputs));
  return static_cast<const float*>(losses_.data());
}

Error Program::keep_state(const std::vector<EValue>& outputs) {
  if (outputs.size() != 1 + returned_.size()) {
    return fail(Error::InvalidProgram, "forward does not return what its manifest says (%s)", path_.c_str());
  }
  for (size_t i = 0; i < returned_.size(); ++i) {
    const EValue& output = outputs[i + 1];
    if (!output.isTensor() || output.toTensor().scalar_type() != ScalarType::Float ||
        output.toTensor().numel() != sites_[i].numel()) {
      return fail(
          Error::InvalidProgram, "forward does not return the state %s (%s)", sites_[i].name.c_str(), path_.c_str());
    }
    std::copy_n(output.toTensor().const_data_ptr<float>(), sites_[i].numel(), returned_[i].begin());
  }
  return Error::Ok;
}

Error Program::run_prefix() {
  const Manifest& m = manifest_;
  const TensorPtr tokens = ints(tokens_, m.batch_size, num_tokens_); // the first B rows
  const auto outputs = methods_->execute("prefix", {EValue(*tokens)});
  const int64_t numel = m.batch_size * num_tokens_ * m.hidden_size;
  if (!outputs.ok() || outputs->empty() || !(*outputs)[0].isTensor() || (*outputs)[0].toTensor().numel() != numel ||
      (*outputs)[0].toTensor().scalar_type() != ScalarType::Float) {
    return fail(Error::InvalidProgram, "the program's prefix failed to run (%s)", path_.c_str());
  }
  // The next method may use the memory the result lies in.
  std::copy_n((*outputs)[0].toTensor().const_data_ptr<float>(), numel, hidden_.begin());
  return Error::Ok;
}

Error Program::apply(const float* g, double lr, int64_t seed, uint64_t step) {
  if (manifest_.returns_state) {
    // A forward that perturbs nothing and of whose rows no target counts.
    fill({});
    return forward(g, lr, 0.0, seed, step).error();
  }
  std::copy_n(g, manifest_.q, g_.begin());
  lr_ = static_cast<float>(lr);
  seed_ = seed, step_ = static_cast<int64_t>(step);
  const TensorPtr tensors[] = {
      from_blob(g_.data(), {static_cast<SizesType>(manifest_.q)}, ScalarType::Float), scalar(lr_, ScalarType::Float),
      scalar(seed_, ScalarType::Long), scalar(step_, ScalarType::Long)};
  const auto outputs =
      methods_->execute("apply", {EValue(*tensors[0]), EValue(*tensors[1]), EValue(*tensors[2]), EValue(*tensors[3])});
  return outputs.ok()
      ? Error::Ok
      : fail(Error::InvalidProgram, "the program failed to run (%s): %s", path_.c_str(), to_string(outputs.error()));
}

} // namespace prge
