#include <cmath>
#include <cstring>

#include "check.h"
#include "choices.h"

using prge::Choices;
using prge::Settings;

static bool is_refused(const Settings& settings, const char* message) {
  const auto found = Choices::parse(settings);
  return found.error() == prge::Error::InvalidArgument && std::strcmp(prge::last_error(), message) == 0;
}

TEST(names_become_values) {
  Settings settings;
  CHECK(Choices::parse(settings)->schedule == prge::Schedule::Linear);
  CHECK(Choices::parse(settings)->estimator == prge::EstimatorKind::Norm);
  settings.schedule = "cosine", settings.estimator = "std", settings.over_limit = settings.not_finite = "skip";
  const auto choices = Choices::parse(settings);
  CHECK(choices.ok() && choices->schedule == prge::Schedule::Cosine);
  CHECK(choices->estimator == prge::EstimatorKind::Std);
  CHECK(choices->over_limit == prge::OverLimit::Skip && choices->not_finite == prge::NotFinite::Skip);
}

TEST(unknown_names_are_refused) {
  Settings settings;
  settings.schedule = "step";
  CHECK(is_refused(settings, "unknown schedule step. Hint: known: constant, linear, cosine"));
  settings = {};
  settings.estimator = "";
  CHECK(is_refused(settings, "unknown estimator . Hint: known: plain, norm, std"));
  settings = {};
  settings.over_limit = "stop";
  CHECK(is_refused(settings, "over_limit is stop; expected clip or skip"));
  settings = {};
  settings.not_finite = "Skip";
  CHECK(is_refused(settings, "not_finite is Skip; expected stop or skip"));
  CHECK(!prge::estimator_named("adam").has_value());
}

TEST(numbers_are_in_their_ranges) {
  const std::pair<double Settings::*, std::pair<double, bool>> cases[] = {
      {&Settings::eps, {0, false}},    {&Settings::eps, {1e-9, true}},    {&Settings::max_g, {-1, false}},
      {&Settings::max_g, {2, true}},   {&Settings::diverged, {1, false}}, {&Settings::diverged, {1.5, true}},
      {&Settings::diverged, {0, true}}};
  for (const auto& [field, expected] : cases) {
    Settings settings;
    settings.*field = expected.first;
    CHECK(Choices::parse(settings).ok() == expected.second);
  }
  Settings settings;
  CHECK(Choices::parse(settings).ok());
  const std::pair<double, bool> rates[] = {{0, true}, {-1, false}, {std::nan(""), false}};
  for (const auto& [rate, expected] : rates) {
    settings.lr = rate;
    CHECK(Choices::parse(settings).ok() == expected);
  }
  settings = {};
  settings.steps = 5, settings.warmup = 5;
  CHECK(is_refused(settings, "the warm-up takes all steps; expected fewer"));
  settings.steps = 0;
  CHECK(is_refused(settings, "the number of steps is 0; expected at least 1"));
  for (const uint32_t accumulate : {0u, 1025u}) {
    settings = {};
    settings.accumulate = accumulate;
    const std::string line = "--accumulate is " + std::to_string(accumulate) + "; expected 1 to 1024";
    CHECK(is_refused(settings, line.c_str()));
  }
  settings = {};
  settings.window = 0;
  CHECK(is_refused(settings, "the window is 0; expected at least 1"));
}
