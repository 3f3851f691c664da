// The arithmetic of prge::dual_update and prge::perturbation on plain memory: for their kernels, and for hosts that
// keep the state themselves. Meaning: prgec/runtime_ops/reference.py.
#pragma once

#include <cstdint>

namespace prgec {

struct DualUpdate {
  float* master; // f32[numel], updated in place
  int64_t numel;
  const float* g; // f32[q]
  int64_t q;
  float lr;
  float eps;
  int64_t seed;
  int64_t step;
  int64_t site;
  float* copies; // f32[2q, numel], or null
  float* moves = nullptr; // f32[q, numel], or null: how far the copies are from the master
};

// Returns whether the thread pool took it.
bool dual_update(const DualUpdate& call);

} // namespace prgec
