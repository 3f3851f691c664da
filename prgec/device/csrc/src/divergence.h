// Detects when training makes things worse for good: the mean loss of a window against that of the first window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "prge/error.h"

namespace prge {

class Divergence {
 public:
  // `factor` times the start's mean loss ends a run; 0 for never.
  Divergence(double factor, uint64_t window) : factor_(factor), window_(window) {}

  // Takes note of the next step's loss. One that is not finite is of a step that was skipped, and counts for nothing.
  void observe(double loss);
  // An error once training has diverged.
  Error check() const;
  bool is_over() const {
    return is_over_;
  }
  // Last step of the window with the lowest mean so far; 0 before the first is full.
  uint64_t best_step() const {
    return best_step_;
  }

 private:
  double mean() const;

  double factor_;
  uint64_t window_;
  std::deque<double> recent_;
  bool is_over_ = false;
  uint64_t step_ = 0, best_step_ = 0;
  double start_ = 0, best_ = 0, last_ = 0;
};

} // namespace prge
