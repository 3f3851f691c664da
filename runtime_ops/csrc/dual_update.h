// What prge::dual_update computes, on plain memory: for its kernel, and for hosts that keep the state themselves.
// Meaning: prgec/runtime_ops/reference.py.
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
  float* copies; // f32[2q, numel]; null for the update alone
};

// Returns whether the thread pool took it.
bool dual_update(const DualUpdate& call);

} // namespace prgec
