// The numbers of tests/training/test_sampling.py; whole answers are compared in tests/device/test_generating.py.
#include <cmath>
#include <cstring>

#include "check.h"
#include "sampler.h"

using prge::power_of_e;
using prge::Sampler;
using prge::Sampling;
using prge::uniform;

static Sampling sampling(double temperature, uint32_t top_k, double top_p, uint64_t seed) {
  Sampling out;
  out.temperature = temperature, out.top_k = top_k, out.top_p = top_p, out.seed = seed;
  return out;
}

static bool is_refused(const Sampling& given, const char* message) {
  return Sampler::check(given) == prge::Error::InvalidArgument && std::strcmp(prge::last_error(), message) == 0;
}

TEST(numbers_of_the_other_driver) {
  CHECK(uniform(7, 0) == 0x1.fc770de03d480p-8 && uniform(7, 1) == 0x1.1b63aaf7174c4p-1);
  CHECK(uniform((uint64_t{1} << 40) + 7, 0) == 0x1.26e2666f1f438p-4);
  CHECK(power_of_e(-0.3) == 0x1.7b4c869c37c05p-1 && power_of_e(-50.5) == 0x1.1ad9f47f3722ap-73);
  CHECK(power_of_e(-699.0) == 0x1.78694fe9f73ccp-1009);
  CHECK(power_of_e(0.0) == 1.0 && power_of_e(-701.0) == 0.0 && power_of_e(-INFINITY) == 0.0);
}

TEST(the_most_likely_and_of_equal_ones_the_first) {
  const float logits[] = {0, 2, 2};
  CHECK(Sampler(Sampling()).choose(logits, 3) == 1);
  CHECK(Sampler(sampling(1e-3, 0, 0.4, 0)).choose(logits, 3) == 1);
}

TEST(what_is_unlikely_is_left_out) {
  const float logits[] = {std::log(0.1f), std::log(0.5f), std::log(0.15f), std::log(0.25f)};
  Sampler few(sampling(1, 2, 1, 5)), likely(sampling(1, 0, 0.7, 5));
  int seen[4] = {};
  for (int i = 0; i < 1000; ++i) {
    const uint32_t token = few.choose(logits, 4);
    CHECK(token == likely.choose(logits, 4));
    ++seen[token];
  }
  CHECK(seen[0] == 0 && seen[2] == 0);
  // Two thirds, and three standard deviations.
  CHECK(std::abs(seen[1] - 667) < 45);
}

TEST(large_logits_do_not_overflow) {
  const float logits[] = {1e30f, -1e30f, 3e4f};
  CHECK(Sampler(sampling(1e-3, 0, 1, 1)).choose(logits, 3) == 0);
}

TEST(numbers_without_meaning) {
  CHECK(Sampler::check(Sampling()) == prge::Error::Ok);
  CHECK(is_refused(sampling(-1, 0, 1, 0), "the temperature is -1; expected a finite number, 0 or more"));
  CHECK(is_refused(sampling(NAN, 0, 1, 0), "the temperature is nan; expected a finite number, 0 or more"));
  CHECK(is_refused(sampling(1, 0, 0, 0), "top-p is 0; expected more than 0, at most 1"));
  CHECK(is_refused(sampling(1, 0, NAN, 0), "top-p is nan; expected more than 0, at most 1"));
}
