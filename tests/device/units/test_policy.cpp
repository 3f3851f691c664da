// Small cases by hand; that every bit is Python's is what test_driver.py shows.
#include <cmath>

#include "check.h"
#include "policy.h"

using prge::Estimator;
using prge::EstimatorKind;
using prge::learning_rate;
using prge::Schedule;

static bool is_near(double found, double expected) {
  return std::fabs(found - expected) <= 1e-12 * std::fabs(expected);
}

TEST(schedules) {
  CHECK(learning_rate(Schedule::Constant, 0.5, 0, 10, 10) == 0.5);
  CHECK(learning_rate(Schedule::Linear, 1.0, 0, 10, 1) == 1.0);
  CHECK(is_near(learning_rate(Schedule::Linear, 1.0, 0, 10, 10), 0.1));
  CHECK(learning_rate(Schedule::Cosine, 1.0, 0, 10, 1) == 1.0);
  CHECK(is_near(learning_rate(Schedule::Cosine, 1.0, 0, 10, 6), 0.5));
}

TEST(warm_up_rises_in_a_straight_line) {
  for (const Schedule schedule : {Schedule::Constant, Schedule::Linear, Schedule::Cosine}) {
    CHECK(learning_rate(schedule, 1.0, 3, 10, 1) == 0.25);
    CHECK(learning_rate(schedule, 1.0, 3, 10, 3) == 0.75);
    CHECK(learning_rate(schedule, 1.0, 3, 10, 4) == 1.0);
  }
}

TEST(plain_is_the_central_difference) {
  const double losses[] = {3.0, 1.0, 0.5, 1.5};
  double g[2];
  Estimator(EstimatorKind::Plain).coefficients(losses, 2, 0.5, g);
  CHECK(g[0] == 2.0 && g[1] == -1.0);
}

TEST(norm_gives_steps_of_equal_length) {
  Estimator estimator(EstimatorKind::Norm);
  const double losses[] = {4.0, 0.0, 3.0, 0.0};
  double g[2];
  for (int step = 0; step < 3; ++step) {
    estimator.coefficients(losses, 2, 0.5, g);
    // (4, 3), over the root of the mean square plus the floor, times the root of q.
    const double scale = std::sqrt(2.0) / (std::sqrt(12.5) + 1e-2);
    CHECK(is_near(g[0], 4.0 * scale) && is_near(g[1], 3.0 * scale));
  }
}

TEST(std_divides_by_the_deviation_and_caps) {
  const double losses[] = {1.0, 0.0, 3.0, 0.0};
  double g[2];
  Estimator(EstimatorKind::Std).coefficients(losses, 2, 0.5, g);
  const double divisor = std::sqrt(2.0) + 1e-2;
  CHECK(is_near(g[0], 1.0 / divisor) && is_near(g[1], 3.0 / divisor));
  const double agreeing[] = {9.0, 0.0, 9.0, 0.0};
  Estimator(EstimatorKind::Std).coefficients(agreeing, 2, 0.5, g);
  CHECK(g[0] == 4.0 && g[1] == 4.0);
}

TEST(losses_that_are_no_numbers_are_forgotten) {
  Estimator estimator(EstimatorKind::Norm), other(EstimatorKind::Norm);
  const double bad[] = {1.0, std::nan("")}, good[] = {2.0, 1.0};
  double g = 0, expected = 0;
  estimator.coefficients(bad, 1, 0.1, &g);
  CHECK(std::isnan(g));
  estimator.coefficients(good, 1, 0.1, &g);
  other.coefficients(good, 1, 0.1, &expected);
  CHECK(g == expected);
}

TEST(means_are_summed_from_left_to_right) {
  const double values[] = {1e16, 1.0, -1e16, 1.0};
  CHECK(prge::ordered_mean(values, 4) == 0.25);
}
