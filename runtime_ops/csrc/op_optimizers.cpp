// prge::step_scale.out and the updates that read its factors. Schemas and meaning: prgec/runtime_ops/schemas.py and
// optimizers.py. Every f32 operation is rounded on its own, in the order written there.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "checks.h"

namespace prgec {
namespace {

using executorch::aten::TensorList;
using executorch::runtime::KernelRuntimeContext;

constexpr int kLanes = 8;
constexpr double kSmallestRms = 1e-20;
constexpr int64_t kGrain = 1 << 14;

// Elements go to lane e mod 8; lanes are added first to last.
double sum_of_squares(const float* values, int64_t size) {
  double lanes[kLanes] = {};
  int64_t e = 0;
  for (; e + kLanes <= size; e += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = values[e + lane];
      lanes[lane] = lanes[lane] + value * value;
    }
  }
  for (int lane = 0; e < size; ++e, ++lane) {
    const double value = values[e];
    lanes[lane] = lanes[lane] + value * value;
  }
  double total = 0.0;
  for (const double lane : lanes) {
    total = total + lane;
  }
  return total;
}

bool are_gradients(TensorList gradients) {
  for (const Tensor& each : gradients) {
    if (each.scalar_type() != ScalarType::Float || !executorch::runtime::tensor_is_default_dim_order(each)) {
      return false;
    }
  }
  return !gradients.empty();
}

bool is_finite(const Tensor& tensor) {
  const float* values = tensor.const_data_ptr<float>();
  return std::all_of(values, values + tensor.numel(), [](float value) { return std::isfinite(value); });
}

// The first one first.
double mean(const Tensor& losses) {
  double total = 0.0;
  for (int64_t row = 0; row < losses.numel(); ++row) {
    total = total + static_cast<double>(losses.const_data_ptr<float>()[row]);
  }
  return total / static_cast<double>(losses.numel());
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
  const double norm = std::sqrt(total);
  double scale = clip > 0.0 && norm > clip ? clip / norm : 1.0;
  float* state = running.mutable_data_ptr<float>();
  const double square =
      beta2 * static_cast<double>(state[0]) + (1.0 - beta2) * ((scale * scale) * (total / static_cast<double>(count)));
  float* factors = out.mutable_data_ptr<float>();
  if (!is_finite(losses) || !std::isfinite(static_cast<float>(norm)) || !std::isfinite(static_cast<float>(square))) {
    factors[0] = 0.0f;
    factors[1] = std::numeric_limits<float>::infinity();
    factors[2] = factors[3] = 1.0f;
    return out;
  }
  const double w1 = beta1 * static_cast<double>(state[1]) + (1.0 - beta1);
  const double w2 = beta2 * static_cast<double>(state[2]) + (1.0 - beta2);
  state[0] = static_cast<float>(square);
  state[1] = static_cast<float>(w1);
  state[2] = static_cast<float>(w2);
  state[3] = 0.0f;
  if (normalise) {
    scale = scale / (std::sqrt(square / w2) + kSmallestRms);
  }
  const double aim = static_cast<double>(float_of(lr)) * scale * total;
  const double most = polyak * mean(losses);
  if (most > 0.0 && aim > most) {
    scale = scale * (most / aim);
  }
  factors[0] = static_cast<float>(scale);
  factors[1] = static_cast<float>(norm);
  factors[2] = static_cast<float>(1.0 / w1);
  factors[3] = static_cast<float>(1.0 / w2);
  return out;
}

// What all updates of one element share.
struct Step {
  float lr;
  float scale;
  float by_w1;
  float by_w2;
  // 1 - lr decay; `decays` says whether it is used at all.
  float keep;
  bool decays;
};

Step step_of(const Tensor& lr, const Tensor& factors, double decay) {
  const float* f = factors.const_data_ptr<float>();
  const float rate = float_of(lr);
  return {rate, f[0], f[2], f[3], 1.0f - rate * static_cast<float>(decay), decay != 0.0};
}

float moved(const Step& step, float master, float direction) {
  const float kept = step.decays ? master * step.keep : master;
  return kept - step.lr * direction;
}

// The larger one; not a number where one is none, as in eager mode.
float larger(float a, float b) {
  return std::isnan(a) || a > b ? a : b;
}

// Runs `direction(e)` over all elements, moves the master along it and writes the largest change. A maximum is the same
// in any order, so the split over threads does not change a bit.
template <typename Direction>
bool update(const Step& step, const Tensor& master, Tensor& out, const Direction& direction) {
  float* weights = master.mutable_data_ptr<float>();
  float* largest = out.mutable_data_ptr<float>();
  largest[0] = 0.0f;
  if (step.scale == 0.0f) {
    return true;
  }
  std::mutex guard;
  return executorch::extension::parallel_for(0, master.numel(), kGrain, [&](int64_t begin, int64_t end) {
    float most = 0.0f;
    for (int64_t e = begin; e < end; ++e) {
      const float before = weights[e];
      weights[e] = moved(step, before, direction(e));
      most = larger(most, std::fabs(weights[e] - before));
    }
    const std::lock_guard<std::mutex> lock(guard);
    largest[0] = larger(largest[0], most);
  });
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

Tensor& sgd_update_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& gradient, const Tensor& lr, const Tensor& factors,
    double decay, Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, are_like(master, {&gradient}) && are_scalars(lr, factors, out), InvalidArgument, out, "%s", kShapes);
  const Step step = step_of(lr, factors, decay);
  const float* g = gradient.const_data_ptr<float>();
  const bool ran = update(step, master, out, [&](int64_t e) { return g[e] * step.scale; });
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::sgd_update: the thread pool failed");
  return out;
}

Tensor& momentum_update_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& mean, const Tensor& gradient, const Tensor& lr,
    const Tensor& factors, double beta1, double decay, Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, are_like(master, {&mean, &gradient}) && are_scalars(lr, factors, out), InvalidArgument, out, "%s", kShapes);
  const Step step = step_of(lr, factors, decay);
  const float keep = static_cast<float>(beta1);
  const float add = static_cast<float>(1.0 - beta1);
  const float* g = gradient.const_data_ptr<float>();
  float* m = mean.mutable_data_ptr<float>();
  const bool ran = update(step, master, out, [&](int64_t e) {
    m[e] = keep * m[e] + add * (g[e] * step.scale);
    return m[e] * step.by_w1;
  });
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::momentum_update: the thread pool failed");
  return out;
}

Tensor& adamw_update_out(
    KernelRuntimeContext& ctx, const Tensor& master, const Tensor& mean, const Tensor& square, const Tensor& gradient,
    const Tensor& lr, const Tensor& factors, double beta1, double beta2, double eps, double decay, Tensor& out) {
  ET_KERNEL_CHECK_MSG(
      ctx, are_like(master, {&mean, &square, &gradient}) && are_scalars(lr, factors, out), InvalidArgument, out, "%s",
      kShapes);
  const Step step = step_of(lr, factors, decay);
  const float keep1 = static_cast<float>(beta1), add1 = static_cast<float>(1.0 - beta1);
  const float keep2 = static_cast<float>(beta2), add2 = static_cast<float>(1.0 - beta2);
  const float floor = static_cast<float>(eps);
  const float* g = gradient.const_data_ptr<float>();
  float* m = mean.mutable_data_ptr<float>();
  float* v = square.mutable_data_ptr<float>();
  const bool ran = update(step, master, out, [&](int64_t e) {
    const float scaled = g[e] * step.scale;
    m[e] = keep1 * m[e] + add1 * scaled;
    v[e] = keep2 * v[e] + add2 * (scaled * scaled);
    return (m[e] * step.by_w1) / (std::sqrt(v[e] * step.by_w2) + floor);
  });
  ET_KERNEL_CHECK_MSG(ctx, ran, Internal, out, "prge::adamw_update: the thread pool failed");
  return out;
}

} // namespace
} // namespace prgec

EXECUTORCH_LIBRARY(prge, "step_scale.out", prgec::step_scale_out);
EXECUTORCH_LIBRARY(prge, "sgd_update.out", prgec::sgd_update_out);
EXECUTORCH_LIBRARY(prge, "momentum_update.out", prgec::momentum_update_out);
EXECUTORCH_LIBRARY(prge, "adamw_update.out", prgec::adamw_update_out);
