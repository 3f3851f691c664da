// The arithmetic of the operators by plain C functions, for hosts in other languages that keep the state themselves.
// They return 0, or 1 where the thread pool failed.
#include <algorithm>
#include <cstdint>

#include "dual_update.h"
#include "noise.h"
#include "optimizers.h"

#define PRGEC_EXPORT extern "C" __attribute__((visibility("default")))

PRGEC_EXPORT int prgec_dual_update(
    float* master, int64_t numel, const float* g, int64_t q, float lr, float eps, int64_t seed, int64_t step,
    int64_t site, float* copies) {
  return prgec::dual_update({master, numel, g, q, lr, eps, seed, step, site, copies}) ? 0 : 1;
}

// Writes the first `numel` normals of one query.
PRGEC_EXPORT void prgec_normals(int64_t seed, int64_t step, int64_t site, int64_t query, int64_t numel, float* out) {
  const prgec::NoiseKey key = {static_cast<uint64_t>(seed), static_cast<uint32_t>(step), static_cast<uint32_t>(site)};
  float tile[prgec::kTileElements];
  for (int64_t first = 0; first < numel; first += prgec::kTileElements) {
    const int64_t size = std::min<int64_t>(prgec::kTileElements, numel - first);
    prgec::fill_normals(
        key, static_cast<uint32_t>(query), static_cast<uint32_t>(first / 4), static_cast<int>((size + 3) / 4), tile);
    std::copy_n(tile, size, out + first);
  }
}

PRGEC_EXPORT double prgec_sum_of_squares(const float* values, int64_t size) {
  return prgec::sum_of_squares(values, size);
}

PRGEC_EXPORT void prgec_step_scale(
    float* running, double total, int64_t count, const float* losses, int64_t num_losses, float lr,
    const prgec::Rule* rule, float* factors) {
  prgec::step_scale(running, total, count, {losses, num_losses}, lr, *rule, factors);
}

PRGEC_EXPORT int prgec_update(const prgec::Site* site, float lr, const float* factors, const prgec::Rule* rule) {
  float largest = 0.0f;
  return prgec::update(*site, lr, factors, *rule, &largest) ? 0 : 1;
}

PRGEC_EXPORT int prgec_accumulate(
    float* total, const float* value, int64_t size, int64_t before, int is_last, float* means) {
  return prgec::accumulate(total, value, size, before, is_last != 0, means) ? 0 : 1;
}
