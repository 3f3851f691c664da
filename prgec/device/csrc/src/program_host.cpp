// A program whose state is kept here: the inputs of its calls, and the update of the state after them. All
// arithmetic is that of the kernels, so runs are those of a program that keeps its state itself, bit for bit.
#include <limits>
#include <utility>

#include "dual_update.h"
#include "fail.h"
#include "optimizers.h"
#include "program_methods.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::from_blob;
using executorch::extension::TensorPtr;

TensorPtr floats(float* data, const std::vector<int64_t>& shape, int64_t copies) {
  std::vector<SizesType> sizes(shape.begin(), shape.end());
  if (copies > 1) {
    sizes.insert(sizes.begin(), static_cast<SizesType>(copies));
  }
  return from_blob(data, std::move(sizes), ScalarType::Float);
}

Error pool_failed() {
  return fail(Error::Internal, "the thread pool of ExecuTorch failed");
}

prgec::Rule rule_of(const Manifest& m) {
  const Update& u = m.update;
  return {u.clip, u.beta1, u.beta2, m.optimizer != "adamw", u.polyak, u.eps, u.decay};
}

} // namespace

Program::Inputs Program::masters() {
  Inputs inputs;
  for (const StateTensor& site : sites_) {
    inputs.push_back(floats(site.data, site.shape, 1));
  }
  return inputs;
}

Result<Program::Inputs> Program::perturbed(const StepInputs& step) {
  const int64_t num_copies = 2 * manifest_.q;
  while (copies_.size() < sites_.size()) {
    copies_.emplace_back(static_cast<size_t>(num_copies * sites_[copies_.size()].numel()));
  }
  PRGE_TRY(update(step, /*with_copies=*/true));
  Inputs inputs;
  for (size_t i = 0; i < sites_.size(); ++i) {
    inputs.push_back(floats(copies_[i].data(), sites_[i].shape, num_copies));
  }
  return inputs;
}

Error Program::update(const StepInputs& step, bool with_copies) {
  for (size_t i = 0; i < sites_.size(); ++i) {
    const prgec::DualUpdate call = {
        sites_[i].data,
        sites_[i].numel(),
        step.g.data(),
        static_cast<int64_t>(step.g.size()),
        step.lr,
        step.eps,
        step.seed,
        step.step,
        manifest_.sites[i].index,
        with_copies ? copies_[i].data() : nullptr};
    if (!prgec::dual_update(call)) {
      return pool_failed();
    }
  }
  return Error::Ok;
}

Result<const float*> Program::differentiate(float lr, const Call& call, std::vector<float>& factors) {
  const auto all = with_rows(masters());
  PRGE_TRY(all.error());
  const auto outputs = execute("forward", *all);
  PRGE_TRY(outputs.error());
  PRGE_TRY(keep_losses(*outputs, "forward", 1 + sites_.size()));
  std::vector<const float*> gradients;
  for (size_t i = 0; i < sites_.size(); ++i) {
    const auto& value = (*outputs)[i + 1];
    if (!value.isTensor() || value.toTensor().scalar_type() != ScalarType::Float ||
        value.toTensor().numel() != sites_[i].numel()) {
      return fail(
          Error::InvalidProgram, "forward does not return the gradient of %s (%s)", sites_[i].name.c_str(),
          path_.c_str());
    }
    gradients.push_back(value.toTensor().const_data_ptr<float>());
  }
  factors = {0.0f, std::numeric_limits<float>::infinity(), 1.0f, 1.0f}; // of a call that changes nothing
  if (call.before == 0 && call.is_last) {
    PRGE_TRY(take_step(gradients, losses_.data(), lr, factors.data()));
    return static_cast<const float*>(losses_.data());
  }
  PRGE_TRY(gather(gradients, call));
  if (call.is_last) {
    for (size_t i = 0; i < sites_.size(); ++i) {
      gradients[i] = sums_[i + 1].data();
    }
    PRGE_TRY(take_step(gradients, sums_[0].data(), lr, factors.data()));
  }
  return static_cast<const float*>(losses_.data());
}

// Adds what a call measured to what its step gathered; in the last one, makes it the mean.
Error Program::gather(const std::vector<const float*>& gradients, const Call& call) {
  if (sums_.empty()) {
    sums_.emplace_back(losses_.size());
    for (const StateTensor& site : sites_) {
      sums_.emplace_back(static_cast<size_t>(site.numel()));
    }
  }
  for (size_t i = 0; i < sums_.size(); ++i) {
    float* total = sums_[i].data();
    const float* value = i == 0 ? losses_.data() : gradients[i - 1];
    const auto size = static_cast<int64_t>(sums_[i].size());
    if (!prgec::accumulate(total, value, size, call.before, call.is_last, call.is_last ? total : nullptr)) {
      return pool_failed();
    }
  }
  return Error::Ok;
}

Error Program::take_step(const std::vector<const float*>& gradients, const float* losses, float lr, float* factors) {
  const prgec::Rule rule = rule_of(manifest_);
  double total = 0.0;
  int64_t count = 0;
  for (size_t i = 0; i < sites_.size(); ++i) {
    total = total + prgec::sum_of_squares(gradients[i], sites_[i].numel());
    count += sites_[i].numel();
  }
  prgec::step_scale(optimizer_[0].data, total, count, {losses, manifest_.num_rows()}, lr, rule, factors);
  // The part that all sites share is followed by each site's running means.
  const size_t num_means = (optimizer_.size() - 1) / sites_.size();
  for (size_t i = 0; i < sites_.size(); ++i) {
    const size_t first = 1 + i * num_means;
    float* mean = num_means > 0 ? optimizer_[first].data : nullptr;
    float* square = num_means > 1 ? optimizer_[first + 1].data : nullptr;
    float largest = 0.0f;
    if (!prgec::update({sites_[i].data, mean, square, gradients[i], sites_[i].numel()}, lr, factors, rule, &largest)) {
      return pool_failed();
    }
  }
  return Error::Ok;
}

} // namespace prge
