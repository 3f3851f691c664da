// The treatment of a step whose numbers are too large or not finite: stopped, skipped or clipped.
#pragma once

#include <cstdint>
#include <vector>

#include "choices.h"
#include "prge/error.h"

namespace prge {

class Limits {
 public:
  // `max_g` is the largest |g| a step may apply, 0 for any.
  Limits(double max_g, OverLimit over, NotFinite not_finite) : max_g_(max_g), over_(over), not_finite_(not_finite) {}

  // Brings g within the limits; `is_finite` says whether the losses are. An error where the run must stop.
  Error apply(uint64_t step, bool is_finite, std::vector<float>& g) const;
  // The policies as a journal's header has them.
  uint32_t flags() const;

 private:
  double max_g_;
  OverLimit over_;
  NotFinite not_finite_;
};

} // namespace prge
