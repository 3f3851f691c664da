// What the host decides: how losses become g, and how the learning rate falls. Twins of prgec's estimators.py,
// schedules.py and sums.py; every operation is f64, in the order written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace prge {

bool is_schedule(const std::string& name);
// Learning rate of a step, counted from 1: a straight rise over `warmup` steps, then the schedule over the others.
double learning_rate(const std::string& schedule, double lr, uint64_t warmup, uint64_t steps, uint64_t step);

bool is_estimator(const std::string& name);
// Writes g[q] from losses[q][2], + before -.
void estimate(const std::string& name, const double* losses, int64_t q, double eps, double* g);

// From left to right.
double ordered_mean(const double* values, size_t size);

} // namespace prge
