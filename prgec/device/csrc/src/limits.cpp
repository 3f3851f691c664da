#include "limits.h"

#include <algorithm>
#include <cmath>

#include "fail.h"

namespace prge {

uint32_t Limits::flags() const {
  return (not_finite_ == NotFinite::Skip ? 1 : 0) + (over_ == OverLimit::Skip ? 2 : 0);
}

Error Limits::apply(uint64_t step, bool is_finite, std::vector<float>& g) const {
  const float bound = static_cast<float>(max_g_);
  bool is_within = true;
  for (const float value : g) {
    is_finite = is_finite && std::isfinite(value);
    is_within = is_within && std::fabs(value) <= bound;
  }
  if (!is_finite && not_finite_ == NotFinite::Stop) {
    return fail(
        Error::InvalidState,
        "a loss or gradient of step %llu is not finite; training stopped, state kept. Hint: lower --lr or --eps, or go "
        "on with --not-finite skip",
        static_cast<unsigned long long>(step));
  }
  const bool is_over = max_g_ != 0 && !is_within;
  if (!is_finite || (is_over && over_ == OverLimit::Skip)) {
    std::fill(g.begin(), g.end(), 0.0f);
  } else if (is_over) {
    for (float& value : g) {
      value = std::min(std::max(value, -bound), bound);
    }
  }
  return Error::Ok;
}

} // namespace prge
