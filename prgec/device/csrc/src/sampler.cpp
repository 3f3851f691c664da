#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fail.h"
#include "philox.h"

namespace prge {

namespace {

// Counters that no noise and no order of rows uses.
constexpr uint32_t kTokenQuery = 0xfffffffdu;
constexpr double kLog2E = 0x1.71547652b82fep0;
// ln 2 in two parts, of which the first times a power of two's exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
// Further down there is nothing to draw.
constexpr double kLeastExponent = -700.0;
// Tokens that are sorted first, where the likeliest that have a share together are looked for.
constexpr size_t kFew = 64;
// Factorials of 0 to 13: each is a whole number below 2^53.
constexpr double kFactorials[] = {1,    1,     2,      6,       24,       120,       720,
                                  5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800};

} // namespace

double uniform(uint64_t seed, uint64_t number) {
  const prgec::PhiloxKey key = {static_cast<uint32_t>(seed), 0};
  const prgec::Words4 x =
      prgec::philox4x32({static_cast<uint32_t>(number), kTokenQuery, 0, static_cast<uint32_t>(seed >> 32)}, key);
  return static_cast<double>((uint64_t{x.x1} << 32 | x.x0) >> 11) * 0x1p-53;
}

double power_of_e(double exponent) {
  if (exponent < kLeastExponent) {
    return 0.0;
  }
  const double twos = std::rint(exponent * kLog2E);
  const double rest = (exponent - twos * kLn2High) - twos * kLn2Low;
  double value = 0.0;
  for (auto factorial = std::rbegin(kFactorials); factorial != std::rend(kFactorials); ++factorial) {
    value = value * rest + 1.0 / *factorial;
  }
  return std::ldexp(value, static_cast<int>(twos));
}

Error Sampler::check(const Sampling& sampling) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) {
    return fail(
        Error::InvalidArgument, "the temperature is %g; expected a finite number, 0 or more", sampling.temperature);
  }
  return sampling.top_p > 0 && sampling.top_p <= 1
      ? Error::Ok
      : fail(Error::InvalidArgument, "top-p is %g; expected more than 0, at most 1", sampling.top_p);
}

uint32_t Sampler::choose(const float* logits, uint32_t vocab_size) {
  if (sampling_.temperature == 0) {
    return static_cast<uint32_t>(std::max_element(logits, logits + vocab_size) - logits);
  }
  const size_t count = sampling_.top_k == 0 ? vocab_size : std::min(sampling_.top_k, vocab_size);
  order_.resize(vocab_size);
  std::iota(order_.begin(), order_.end(), 0u);
  if (count < vocab_size) {
    bring_forward(logits, count);
    order_.resize(count);
    std::sort(order_.begin(), order_.end());
  }
  const double highest = *std::max_element(logits, logits + vocab_size);
  weights_.resize(vocab_size);
  double total = 0.0;
  for (const uint32_t id : order_) {
    weights_[id] = power_of_e((logits[id] - highest) / sampling_.temperature);
    total += weights_[id];
  }
  if (sampling_.top_p < 1) {
    keep_heaviest(logits, sampling_.top_p * total);
  }
  sums_.resize(order_.size());
  double sum = 0.0;
  for (size_t i = 0; i < order_.size(); ++i) {
    sums_[i] = sum += weights_[order_[i]];
  }
  const double drawn = uniform(sampling_.seed, num_drawn_++) * sums_.back();
  // Rounding may leave the draw after the last sum.
  const auto place = std::min(std::upper_bound(sums_.begin(), sums_.end(), drawn), sums_.end() - 1);
  return order_[static_cast<size_t>(place - sums_.begin())];
}

// Puts the `count` most likely tokens first, the most likely before others; of equal ones the first.
void Sampler::bring_forward(const float* logits, size_t count) {
  const auto is_likelier = [&](uint32_t left, uint32_t right) {
    return logits[left] > logits[right] || (logits[left] == logits[right] && left < right);
  };
  const auto last = order_.begin() + static_cast<int64_t>(count);
  std::nth_element(order_.begin(), last, order_.end(), is_likelier);
  std::sort(order_.begin(), last, is_likelier);
}

// Leaves the fewest tokens with that sum, in order; the one that crosses the line belongs.
void Sampler::keep_heaviest(const float* logits, double least_sum) {
  size_t kept = 0, count = 0;
  for (double sum = 0.0; kept == 0; sum = 0.0) {
    count = std::min(count == 0 ? kFew : count * kFew, order_.size());
    bring_forward(logits, count);
    for (size_t i = 0; i < count && kept == 0; ++i) {
      sum += weights_[order_[i]];
      kept = sum >= least_sum || i + 1 == order_.size() ? i + 1 : 0;
    }
  }
  order_.resize(kept);
  std::sort(order_.begin(), order_.end());
}

} // namespace prge
