#include "limits.h"

#include <algorithm>
#include <cmath>

#include "fail.h"

namespace prge {

Error check_limits(const Settings& settings) {
  if (!std::isfinite(settings.max_g) || settings.max_g < 0) {
    return fail(Error::InvalidArgument, "the bound on g is %g; expected a finite number, 0 or more", settings.max_g);
  }
  if (settings.over_limit != "clip" && settings.over_limit != "skip") {
    return fail(Error::InvalidArgument, "over_limit is %s; expected clip or skip", settings.over_limit.c_str());
  }
  if (settings.not_finite != "stop" && settings.not_finite != "skip") {
    return fail(Error::InvalidArgument, "not_finite is %s; expected stop or skip", settings.not_finite.c_str());
  }
  if (!std::isfinite(settings.diverged) || (settings.diverged != 0 && settings.diverged <= 1)) {
    return fail(Error::InvalidArgument, "diverged is %g; expected 0, or a finite number above 1", settings.diverged);
  }
  return settings.window >= 1 ? Error::Ok : fail(Error::InvalidArgument, "the window is 0; expected at least 1");
}

uint32_t policy_flags(const Settings& settings) {
  return (settings.not_finite == "skip" ? 1 : 0) + (settings.over_limit == "skip" ? 2 : 0);
}

Error limit(const Settings& settings, uint64_t step, bool is_finite, std::vector<float>& g) {
  const float bound = static_cast<float>(settings.max_g);
  bool is_within = true;
  for (const float value : g) {
    is_finite = is_finite && std::isfinite(value);
    is_within = is_within && std::fabs(value) <= bound;
  }
  if (!is_finite && settings.not_finite == "stop") {
    return fail(
        Error::InvalidState,
        "a loss or gradient of step %llu is not finite; training stopped, state kept. Hint: lower --lr or --eps, or go "
        "on with --not-finite skip",
        static_cast<unsigned long long>(step));
  }
  const bool is_over = settings.max_g != 0 && !is_within;
  if (!is_finite || (is_over && settings.over_limit == "skip")) {
    std::fill(g.begin(), g.end(), 0.0f);
  } else if (is_over) {
    for (float& value : g) {
      value = std::min(std::max(value, -bound), bound);
    }
  }
  return Error::Ok;
}

} // namespace prge
