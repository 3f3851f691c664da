// Which token comes next. The numbers are those of prgec/runtime/training/sampling.py, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "prge/error.h"
#include "prge/generator.h"

namespace prge {

// The draw of that number: a multiple of 2^-53 in [0, 1).
double uniform(uint64_t seed, uint64_t number);
// e to the power of a number up to 0, to the last bit or two; every operation is one of IEEE 754.
double power_of_e(double exponent);

class Sampler {
 public:
  // Refuses numbers without meaning.
  static Error check(const Sampling& sampling);
  explicit Sampler(const Sampling& sampling) : sampling_(sampling) {}

  // None of the logits is a NaN.
  uint32_t choose(const float* logits, uint32_t vocab_size);

 private:
  void bring_forward(const float* logits, size_t count);
  void keep_heaviest(const float* logits, double least_sum);

  Sampling sampling_;
  uint64_t num_drawn_ = 0;
  std::vector<uint32_t> order_; // tokens to draw among
  std::vector<double> weights_; // probabilities of all tokens, up to a factor
  std::vector<double> sums_; // of those to draw among
};

} // namespace prge
