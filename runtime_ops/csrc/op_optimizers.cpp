// prge::step_scale.out and the updates that read its factors. Schemas and meaning: prgec/runtime_ops/schemas.py and
// optimizers.py.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>

#include "checks.h"
#include "optimizers.h"

namespace prgec {
namespace {

using executorch::aten::TensorList;
using executorch::runtime::KernelRuntimeContext;

bool are_gradients(TensorList gradients) {
  for (const Tensor& each : gradients) {
    if (each.scalar_type() != ScalarType::Float || !executorch::runtime::tensor_is_default_dim_order(each)) {
      return false;
    }
  }
  return !gradients.empty();
}

bool is_vector(const Tensor& tensor, int64_t size) {
  return is_contiguous(tensor, ScalarType::Float, 1) && tensor.numel() == size;
}

bool are_losses(const Tensor& losses) {
  return is_contiguous(losses, ScalarType::Float, 1) && losses.numel() > 0;
}

Tensor& step_scale_out(
    KernelRuntimeContext& ctx, const Tensor& running, TensorList gradients, const Tensor& losses, const Tensor& lr,
    double clip, double beta1, double beta2, bool normalise, double polyak, Tensor& out) {
  // The macro prints its condition, and the log cuts long lines: both have to fit.
  const bool is_good = is_vector(running, 4) && is_vector(out, 4) && are_gradients(gradients) && are_losses(losses) &&
      is_contiguous(lr, ScalarType::Float, 0);
  ET_KERNEL_CHECK_MSG(
      ctx, is_good, InvalidArgument, out,
      "prge::step_scale: running and out must be float32[4], gradients float32 and at least one, losses float32[B], "
      "lr float32[]");
  double total = 0.0;
  int64_t count = 0;
  for (const Tensor& each : gradients) {
    total = total + sum_of_squares(each.const_data_ptr<float>(), each.numel());
    count += each.numel();
  }
  const Losses all = {losses.const_data_ptr<float>(), losses.numel()};
  const Rule rule = {clip, beta1, beta2, normalise, polyak};
  step_scale(running.mutable_data_ptr<float>(), total, count, all, float_of(lr), rule, out.mutable_data_ptr<float>());
  return out;
}

bool are_like(const Tensor& master, std::initializer_list<const Tensor*> others) {
  for (const Tensor* each : others) {
    if (!is_contiguous(*each, ScalarType::Float, 2) || each->size(0) != master.size(0) ||
        each->size(1) != master.size(1)) {
      return false;
    }
  }
  return is_contiguous(master, ScalarType::Float, 2);
}

bool are_scalars(const Tensor& lr, const Tensor& factors, const Tensor& out) {
  return is_contiguous(lr, ScalarType::Float, 0) && is_vector(factors, 4) && is_vector(out, 1);
}

constexpr const char* kShapes =
    "prge: an update takes float32[r, out] of one shape, lr float32[], factors float32[4] and out float32[1]";

float* data_of(const Tensor& tensor) {
  return tensor.mutable_data_ptr<float>();
}

Tensor& sgd_update_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& gradient, const Tensor& lr, const Tensor& factors,
    double decay, Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, are_like(master, {&gradient}) && are_scalars(lr, factors, out), InvalidArgument, out, "%s", kShapes);
  const Site site = {data_of(master), nullptr, nullptr, data_of(gradient), master.numel()};
  Rule rule;
  rule.decay = decay;
  const bool ran = sgd_update(site, float_of(lr), data_of(factors), rule, data_of(out));
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::sgd_update: the thread pool failed");
  return out;
}

Tensor& momentum_update_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& mean, const Tensor& gradient, const Tensor& lr,
    const Tensor& factors, double beta1, double decay, Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, are_like(master, {&mean, &gradient}) && are_scalars(lr, factors, out), InvalidArgument, out, "%s", kShapes);
  const Site site = {data_of(master), data_of(mean), nullptr, data_of(gradient), master.numel()};
  Rule rule;
  rule.beta1 = beta1;
  rule.decay = decay;
  const bool ran = momentum_update(site, float_of(lr), data_of(factors), rule, data_of(out));
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::momentum_update: the thread pool failed");
  return out;
}

Tensor& adamw_update_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& mean, const Tensor& square, const Tensor& gradient,
    const Tensor& lr, const Tensor& factors, double beta1, double beta2, double eps, double decay, Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, are_like(master, {&mean, &square, &gradient}) && are_scalars(lr, factors, out), InvalidArgument, out, "%s",
      kShapes);
  const Site site = {data_of(master), data_of(mean), data_of(square), data_of(gradient), master.numel()};
  Rule rule;
  rule.beta1 = beta1;
  rule.beta2 = beta2;
  rule.eps = eps;
  rule.decay = decay;
  const bool ran = adamw_update(site, float_of(lr), data_of(factors), rule, data_of(out));
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::adamw_update: the thread pool failed");
  return out;
}

} // namespace
} // namespace prgec

EXECUTORCH_LIBRARY(prge, "step_scale.out", prgec::step_scale_out);
EXECUTORCH_LIBRARY(prge, "sgd_update.out", prgec::sgd_update_out);
EXECUTORCH_LIBRARY(prge, "momentum_update.out", prgec::momentum_update_out);
EXECUTORCH_LIBRARY(prge, "adamw_update.out", prgec::adamw_update_out);
