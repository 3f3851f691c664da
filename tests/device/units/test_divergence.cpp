#include <cmath>

#include "check.h"
#include "divergence.h"

using prge::Divergence;

static void observe(Divergence& divergence, std::initializer_list<double> losses) {
  for (const double loss : losses) {
    divergence.observe(loss);
  }
}

TEST(a_window_worse_than_the_first_ends_the_run) {
  Divergence divergence(1.5, 2);
  observe(divergence, {1.0, 1.0, 0.5, 0.5, 1.4});
  CHECK(divergence.check() == prge::Error::Ok);
  CHECK(divergence.best_step() == 4);
  observe(divergence, {1.7});
  CHECK(divergence.is_over());
  CHECK(divergence.check() == prge::Error::InvalidState);
  CHECK(
      std::string(prge::last_error()).find("of 2 steps was 1 at the start and is 1.55 at step 6") != std::string::npos);
}

TEST(nothing_is_said_before_the_first_window_is_full) {
  Divergence divergence(1.5, 3);
  observe(divergence, {1.0, 100.0});
  CHECK(!divergence.is_over() && divergence.best_step() == 0);
}

TEST(zero_is_never) {
  Divergence divergence(0, 1);
  observe(divergence, {1.0, 1e30, INFINITY});
  CHECK(!divergence.is_over());
}

TEST(skipped_steps_count_for_nothing_unless_all_are) {
  Divergence divergence(2.0, 2);
  observe(divergence, {1.0, 1.0, NAN, 1.0});
  CHECK(!divergence.is_over());
  observe(divergence, {NAN, NAN});
  CHECK(divergence.is_over());
}
