#include "policy.h"

#include <algorithm>
#include <cmath>

namespace prge {

namespace {

constexpr double kPi = 3.141592653589793;
// For the estimators `norm` and `std`: keeps a flat start from taking full steps.
constexpr double kFloor = 1e-2;
// For `norm`: share of the running mean that survives a step.
constexpr double kDecay = 0.99;
// For `std`: keeps queries that agree from taking a huge step.
constexpr double kCap = 4.0;

// `progress` is the share of the schedule already done, in [0, 1).
double factor(Schedule schedule, double progress) {
  switch (schedule) {
    case Schedule::Constant:
      return 1.0;
    case Schedule::Linear:
      return 1.0 - progress;
    case Schedule::Cosine:
      return 0.5 * (1.0 + std::cos(kPi * progress));
  }
  return 1.0;
}

// Sum from left to right.
double squares_about(double centre, const double* g, int64_t q) {
  double squares = 0.0;
  for (int64_t i = 0; i < q; ++i) {
    const double deviation = g[i] - centre;
    squares = squares + deviation * deviation;
  }
  return squares;
}

void divide_by_deviation(double* g, int64_t q) {
  if (q == 1) {
    return;
  }
  const double mean = ordered_mean(g, static_cast<size_t>(q));
  const double divisor = std::sqrt(squares_about(mean, g, q) / static_cast<double>(q - 1)) + kFloor;
  for (int64_t i = 0; i < q; ++i) {
    g[i] = g[i] / divisor;
  }
}

} // namespace

double learning_rate(Schedule schedule, double lr, uint64_t warmup, uint64_t steps, uint64_t step) {
  if (step <= warmup) {
    return lr * static_cast<double>(step) / static_cast<double>(warmup + 1);
  }
  return lr * factor(schedule, static_cast<double>(step - 1 - warmup) / static_cast<double>(steps - warmup));
}

void Estimator::coefficients(const double* losses, int64_t q, double eps, double* g) {
  if (!std::all_of(losses, losses + 2 * q, [](double loss) { return std::isfinite(loss); })) {
    std::fill(g, g + q, std::nan(""));
    return;
  }
  for (int64_t i = 0; i < q; ++i) {
    g[i] = (losses[2 * i] - losses[2 * i + 1]) / (2.0 * eps);
  }
  if (kind_ == EstimatorKind::Norm) {
    to_equal_length(g, q);
  } else if (kind_ == EstimatorKind::Std) {
    divide_by_deviation(g, q);
    for (int64_t i = 0; i < q; ++i) {
      g[i] = std::min(std::max(g[i], -kCap), kCap);
    }
  }
}

void Estimator::to_equal_length(double* g, int64_t q) {
  const double count = static_cast<double>(q);
  rest_ = rest_ * kDecay;
  moment_ = kDecay * moment_ + (1.0 - kDecay) * (squares_about(0.0, g, q) / count);
  const double scale = std::sqrt(count) / (std::sqrt(moment_ / (1.0 - rest_)) + kFloor);
  for (int64_t i = 0; i < q; ++i) {
    g[i] = g[i] * scale;
  }
}

double ordered_mean(const double* values, size_t size) {
  double sum = values[0];
  for (size_t i = 1; i < size; ++i) {
    sum = sum + values[i];
  }
  return sum / static_cast<double>(size);
}

} // namespace prge
