#include <cmath>

#include "check.h"
#include "limits.h"

using prge::Error;
using prge::Limits;
using prge::NotFinite;
using prge::OverLimit;

TEST(within_the_limits_nothing_changes) {
  std::vector<float> g = {1.5f, -2.0f};
  CHECK(Limits(2.0, OverLimit::Skip, NotFinite::Stop).apply(1, true, g) == Error::Ok);
  CHECK(Limits(0.0, OverLimit::Skip, NotFinite::Stop).apply(1, true, g) == Error::Ok);
  CHECK(g == (std::vector<float>{1.5f, -2.0f}));
}

TEST(beyond_them_a_step_is_clipped_or_skipped) {
  std::vector<float> g = {1.5f, -3.0f, 0.5f};
  CHECK(Limits(1.0, OverLimit::Clip, NotFinite::Stop).apply(1, true, g) == Error::Ok);
  CHECK(g == (std::vector<float>{1.0f, -1.0f, 0.5f}));
  g = {1.5f, -3.0f, 0.5f};
  CHECK(Limits(1.0, OverLimit::Skip, NotFinite::Stop).apply(1, true, g) == Error::Ok);
  CHECK(g == std::vector<float>(3));
}

TEST(what_is_not_finite_stops_or_is_skipped) {
  for (const bool is_loss : {true, false}) {
    std::vector<float> g = {is_loss ? 1.0f : INFINITY, 2.0f};
    CHECK(Limits(0.0, OverLimit::Clip, NotFinite::Stop).apply(7, !is_loss, g) == Error::InvalidState);
    CHECK(std::string(prge::last_error()).find("of step 7 is not finite") != std::string::npos);
    CHECK(Limits(0.0, OverLimit::Clip, NotFinite::Skip).apply(7, !is_loss, g) == Error::Ok);
    CHECK(g == std::vector<float>(2));
  }
}

TEST(flags_are_those_of_the_journal) {
  CHECK(Limits(0.0, OverLimit::Clip, NotFinite::Stop).flags() == 0);
  CHECK(Limits(0.0, OverLimit::Clip, NotFinite::Skip).flags() == 1);
  CHECK(Limits(0.0, OverLimit::Skip, NotFinite::Stop).flags() == 2);
}
