// One call of a program: its inputs, and what becomes of its outputs.
#include <algorithm>
#include <tuple>
#include <utility>

#include "fail.h"
#include "program_methods.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::extension::from_blob;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

// A dynamic sequence axis is exported with this lower bound.
constexpr int32_t kMinTokens = 2;

TensorPtr ints(std::vector<int64_t>& data, int64_t rows, int64_t columns) {
  return from_blob(data.data(), {static_cast<SizesType>(rows), static_cast<SizesType>(columns)}, ScalarType::Long);
}

// The inputs after the rows.
std::vector<TensorPtr> tensors_of(StepInputs& step) {
  return {
      from_blob(step.g.data(), {static_cast<SizesType>(step.g.size())}, ScalarType::Float),
      from_blob(&step.lr, {}, ScalarType::Float), from_blob(&step.eps, {}, ScalarType::Float),
      from_blob(&step.seed, {}, ScalarType::Long), from_blob(&step.step, {}, ScalarType::Long)};
}

bool is_floats(const EValue& value, int64_t numel) {
  return value.isTensor() && value.toTensor().scalar_type() == ScalarType::Float && value.toTensor().numel() == numel;
}

void copy_floats(const EValue& from, std::vector<float>& to) {
  const Tensor& tensor = from.toTensor();
  std::copy_n(tensor.const_data_ptr<float>(), tensor.numel(), to.begin());
}

} // namespace

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
  std::fill(weights_.begin(), weights_.end(), 1.0f);
  for (size_t n = 0; n < rows.size(); ++n) {
    const Row& row = rows[n];
    const size_t labels_at = n * static_cast<size_t>(m.num_labels);
    std::copy_n(row.tokens, row.num_tokens, &tokens_[n * static_cast<size_t>(num_tokens_)]);
    std::copy_n(row.label_pos, row.num_labels, &label_pos_[labels_at]);
    std::copy_n(row.targets, row.num_labels, &targets_[labels_at]);
    if (m.has_label_weights && row.weights != nullptr) {
      std::copy_n(row.weights, row.num_labels, &weights_[labels_at]);
    }
  }
}

Result<std::vector<EValue>> Program::execute(const char* method, const Inputs& inputs) {
  std::vector<EValue> values;
  values.reserve(inputs.size());
  for (const TensorPtr& input : inputs) {
    values.emplace_back(*input);
  }
  auto outputs = methods_->execute(method, values);
  if (!outputs.ok()) {
    return fail(Error::InvalidProgram, "the program failed to run (%s): %s", path_.c_str(), to_string(outputs.error()));
  }
  return outputs;
}

// Inputs of a call over rows: those, what the method takes besides, and the hidden states of the first blocks.
Result<Program::Inputs> Program::with_rows(const Inputs& others, bool is_forward) {
  const Manifest& m = manifest_;
  Inputs all = {
      ints(tokens_, m.num_rows(), num_tokens_), ints(label_pos_, m.num_rows(), m.num_labels),
      ints(targets_, m.num_rows(), m.num_labels)};
  if (m.has_label_weights && is_forward) {
    all.push_back(from_blob(
        weights_.data(), {static_cast<SizesType>(m.num_rows()), static_cast<SizesType>(m.num_labels)},
        ScalarType::Float));
  }
  all.insert(all.end(), others.begin(), others.end());
  if (m.prefix == Prefix::Method) {
    PRGE_TRY(run_prefix());
    all.push_back(from_blob(
        hidden_.data(), {static_cast<SizesType>(m.batch_size), num_tokens_, static_cast<SizesType>(m.hidden_size)},
        ScalarType::Float));
  }
  return all;
}

// Runs the longest call there is once, before the first score or step, so that it finds its memory empty. Rows get
// longer from one step to another, and XNNPACK takes the memory of the longer call before it gives that of the shorter
// one back (initialize_workspace_values in its runtime.c): twice as much at that moment.
Error Program::make_room() {
  const Manifest& m = manifest_;
  // Only there does memory grow with T; where blocks are a method of their own, the Python driver keeps its results.
  const bool had_room = std::exchange(has_room_, true);
  const bool grows = m.backend == "xnnpack" && m.is_dynamic && m.prefix != Prefix::Method;
  if (had_room || !grows || num_tokens_ == m.seq_len) {
    return Error::Ok;
  }
  const auto rows = std::tuple(num_tokens_, tokens_, label_pos_, targets_, weights_);
  fill({});
  num_tokens_ = static_cast<int32_t>(m.seq_len);
  PRGE_TRY(run_longest());
  std::tie(num_tokens_, tokens_, label_pos_, targets_, weights_) = rows;
  return Error::Ok;
}

Error Program::run_longest() {
  if (!manifest_.has_gradients) {
    StepInputs none = {std::vector<float>(static_cast<size_t>(manifest_.q)), 0, 0, 0, 1};
    return forward(none).error();
  }
  if (manifest_.is_host) {
    const auto all = with_rows(masters());
    PRGE_TRY(all.error());
    return execute("forward", *all).error();
  }
  // At a rate of 0 it leaves the weights as they are, and no step was taken that the optimiser could remember: nothing
  // to be kept meanwhile, in what may be the most memory of the run.
  std::vector<float> factors;
  PRGE_TRY(train(0, {}, factors).error());
  forget_steps();
  return Error::Ok;
}

Result<const float*> Program::forward(StepInputs& step) {
  PRGE_TRY(step.eps != 0 ? make_room() : Error::Ok);
  const auto inputs = manifest_.is_host ? perturbed(step) : Result<Inputs>(tensors_of(step));
  PRGE_TRY(inputs.error());
  const auto all = with_rows(*inputs);
  PRGE_TRY(all.error());
  const auto outputs = execute("forward", *all);
  PRGE_TRY(outputs.error());
  PRGE_TRY(keep_losses(*outputs, "forward", manifest_.returns_state ? 1 + sites_.size() : 1));
  PRGE_TRY(manifest_.returns_state ? keep_state(*outputs) : Error::Ok);
  return static_cast<const float*>(losses_.data());
}

Result<const float*> Program::train(float lr, const Call& call, std::vector<float>& factors) {
  PRGE_TRY(make_room());
  if (manifest_.is_host) {
    return differentiate(lr, call, factors);
  }
  Inputs others = {from_blob(&lr, {}, ScalarType::Float)};
  std::vector<int64_t> which = {call.before, call.is_last ? 1 : 0};
  if (manifest_.accumulates) {
    others.push_back(from_blob(which.data(), {2}, ScalarType::Long));
  }
  const auto all = with_rows(others);
  PRGE_TRY(all.error());
  const auto outputs = execute("forward", *all);
  PRGE_TRY(outputs.error());
  PRGE_TRY(keep_losses(*outputs, "forward", 2));
  if (!is_floats((*outputs)[1], kNumFactors)) {
    return fail(Error::InvalidProgram, "forward does not return the factors of its step (%s)", path_.c_str());
  }
  factors.resize(kNumFactors);
  copy_floats((*outputs)[1], factors);
  return static_cast<const float*>(losses_.data());
}

Result<const float*> Program::evaluate() {
  if (!can_evaluate_) {
    PRGE_TRY(load_method("evaluate", 3 + (manifest_.is_host ? sites_.size() : 0) + num_hidden()));
    packed_.seal();
    can_evaluate_ = true;
  }
  const auto all = with_rows(manifest_.is_host ? masters() : Inputs(), /*is_forward=*/false);
  PRGE_TRY(all.error());
  const auto outputs = execute("evaluate", *all);
  PRGE_TRY(outputs.error());
  PRGE_TRY(keep_losses(*outputs, "evaluate", 1));
  return static_cast<const float*>(losses_.data());
}

// The first result of a method is the loss of every row.
Error Program::keep_losses(const std::vector<EValue>& outputs, const char* method, size_t num_outputs) {
  if (outputs.size() != num_outputs || !is_floats(outputs[0], manifest_.num_rows())) {
    return fail(
        Error::InvalidProgram, "%s does not return one f32 loss a row and what its manifest says (%s)", method,
        path_.c_str());
  }
  copy_floats(outputs[0], losses_);
  return Error::Ok;
}

Error Program::keep_state(const std::vector<EValue>& outputs) {
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (!is_floats(outputs[i + 1], sites_[i].numel())) {
      return fail(
          Error::InvalidProgram, "forward does not return the state %s (%s)", sites_[i].name.c_str(), path_.c_str());
    }
    copy_floats(outputs[i + 1], held_[i]);
  }
  return Error::Ok;
}

Error Program::run_prefix() {
  const Manifest& m = manifest_;
  const auto outputs = execute("prefix", {ints(tokens_, m.batch_size, num_tokens_)}); // the first B rows
  PRGE_TRY(outputs.error());
  if (outputs->empty() || !is_floats((*outputs)[0], m.batch_size * num_tokens_ * m.hidden_size)) {
    return fail(Error::InvalidProgram, "prefix does not return what its manifest says (%s)", path_.c_str());
  }
  // The next method may use the memory the result lies in.
  copy_floats((*outputs)[0], hidden_);
  return Error::Ok;
}

Error Program::apply(StepInputs& step) {
  if (manifest_.is_host) {
    return update(step, /*with_copies=*/false);
  }
  Inputs inputs = tensors_of(step);
  inputs.erase(inputs.begin() + 2); // eps
  return execute("apply", inputs).error();
}

} // namespace prge
