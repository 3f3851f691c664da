// The arithmetic of the optimiser operators on plain memory: for their kernels, and for hosts that keep the state
// themselves. Meaning: prgec/runtime_ops/optimizers.py and accumulation.py.
#pragma once

#include <cstdint>

namespace prgec {

// How a step is made of gradients; momentum and AdamW read the betas, AdamW alone eps.
struct Rule {
  double clip = 0;
  double beta1 = 0;
  double beta2 = 0;
  bool normalise = false;
  double polyak = 0;
  double eps = 0;
  double decay = 0;
};

// Elements go to lane e mod 8; lanes are added first to last.
double sum_of_squares(const float* values, int64_t size);

struct Losses {
  const float* values; // f32[size]
  int64_t size;
};

// Writes scale, norm and corrections to `factors`, f32[4]. `total` is the sum of squares of all gradients, `count` how
// many elements they have.
void step_scale(
    float* running, double total, int64_t count, const Losses& losses, float lr, const Rule& rule, float* factors);

// One site, f32[size] each; a rule without running means has none of them.
struct Site {
  float* master;
  float* mean;
  float* square;
  const float* gradient;
  int64_t size;
};

// Write the largest change of an element to `largest`, f32[1]. Return whether the thread pool took it.
bool sgd_update(const Site& site, float lr, const float* factors, const Rule& rule, float* largest);
bool momentum_update(const Site& site, float lr, const float* factors, const Rule& rule, float* largest);
bool adamw_update(const Site& site, float lr, const float* factors, const Rule& rule, float* largest);

// The one of these that the site's running means belong to.
bool update(const Site& site, float lr, const float* factors, const Rule& rule, float* largest);

// `means` is f32[size]: null where nobody reads them, `total` where nobody will read that again. Returns whether
// the thread pool took it.
bool accumulate(float* total, const float* value, int64_t size, int64_t before, bool is_last, float* means);

} // namespace prgec
