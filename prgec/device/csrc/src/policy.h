// The decisions of the host: how losses become g, and how the learning rate falls. Twins of prgec's estimators.py,
// schedules.py and sums.py; every operation is f64, in the order written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "choices.h"

namespace prge {

// Learning rate of a step, counted from 1: a straight rise over `warmup` steps, then the schedule over the others.
double learning_rate(Schedule schedule, double lr, uint64_t warmup, uint64_t steps, uint64_t step);

// Turns losses into g. It may remember earlier steps: it observes every step of a run once and in order.
class Estimator {
 public:
  explicit Estimator(EstimatorKind kind) : kind_(kind) {}

  // Writes g[q] from losses[q][2], + before -. Losses that are not finite give NaN and are not remembered.
  void coefficients(const double* losses, int64_t q, double eps, double* g);

 private:
  void to_equal_length(double* g, int64_t q);

  EstimatorKind kind_;
  double moment_ = 0.0; // running mean of the squares of g
  double rest_ = 1.0; // kDecay to the power of the steps
};

// From left to right.
double ordered_mean(const double* values, size_t size);

} // namespace prge
