#include "choices.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "fail.h"

namespace prge {

namespace {

// Calls of a step: sums of more would lose their last digits.
constexpr uint32_t kMaxCalls = 1 << 10;

template <typename T>
using Names = std::pair<std::string_view, T>;

constexpr Names<Schedule> kSchedules[] = {
    {"constant", Schedule::Constant}, {"linear", Schedule::Linear}, {"cosine", Schedule::Cosine}};
constexpr Names<EstimatorKind> kEstimators[] = {
    {"plain", EstimatorKind::Plain}, {"norm", EstimatorKind::Norm}, {"std", EstimatorKind::Std}};
constexpr Names<OverLimit> kOverLimits[] = {{"clip", OverLimit::Clip}, {"skip", OverLimit::Skip}};
constexpr Names<NotFinite> kNotFinite[] = {{"stop", NotFinite::Stop}, {"skip", NotFinite::Skip}};

template <typename T, size_t N>
std::optional<T> find(const Names<T> (&names)[N], std::string_view wanted) {
  for (const auto& [name, value] : names) {
    if (name == wanted) {
      return value;
    }
  }
  return std::nullopt;
}

// Gives `out` the value of that name; false where there is none.
template <typename T, size_t N>
bool choose(const Names<T> (&names)[N], std::string_view wanted, T& out) {
  const std::optional<T> found = find(names, wanted);
  out = found.value_or(out);
  return found.has_value();
}

Error check_numbers(const Settings& settings) {
  if (settings.steps < 1) {
    return fail(Error::InvalidArgument, "the number of steps is 0; expected at least 1");
  }
  if (settings.accumulate < 1 || settings.accumulate > kMaxCalls) {
    return fail(Error::InvalidArgument, "--accumulate is %u; expected 1 to %u", settings.accumulate, kMaxCalls);
  }
  const double lr = settings.lr.value_or(0);
  if (!std::isfinite(lr) || lr < 0) {
    return fail(Error::InvalidArgument, "the learning rate is %g; expected a finite number, 0 or more", lr);
  }
  if (!std::isfinite(settings.eps) || settings.eps <= 0) {
    return fail(Error::InvalidArgument, "eps is %g; expected a finite number above 0", settings.eps);
  }
  if (settings.warmup >= settings.steps) {
    return fail(Error::InvalidArgument, "the warm-up takes all steps; expected fewer");
  }
  if (!std::isfinite(settings.max_g) || settings.max_g < 0) {
    return fail(Error::InvalidArgument, "the bound on g is %g; expected a finite number, 0 or more", settings.max_g);
  }
  if (!std::isfinite(settings.diverged) || (settings.diverged != 0 && settings.diverged <= 1)) {
    return fail(Error::InvalidArgument, "diverged is %g; expected 0, or a finite number above 1", settings.diverged);
  }
  return settings.window >= 1 ? Error::Ok : fail(Error::InvalidArgument, "the window is 0; expected at least 1");
}

} // namespace

Result<Choices> Choices::parse(const Settings& settings) {
  PRGE_TRY(check_numbers(settings));
  Choices out;
  const auto refuse = [](const std::string& line) { return fail(Error::InvalidArgument, "%s", line.c_str()); };
  if (!choose(kSchedules, settings.schedule, out.schedule)) {
    return refuse("unknown schedule " + settings.schedule + ". Hint: known: constant, linear, cosine");
  }
  if (!choose(kEstimators, settings.estimator, out.estimator)) {
    return refuse("unknown estimator " + settings.estimator + ". Hint: known: plain, norm, std");
  }
  if (!choose(kOverLimits, settings.over_limit, out.over_limit)) {
    return refuse("over_limit is " + settings.over_limit + "; expected clip or skip");
  }
  if (!choose(kNotFinite, settings.not_finite, out.not_finite)) {
    return refuse("not_finite is " + settings.not_finite + "; expected stop or skip");
  }
  return out;
}

std::optional<EstimatorKind> estimator_named(std::string_view name) {
  return find(kEstimators, name);
}

} // namespace prge
