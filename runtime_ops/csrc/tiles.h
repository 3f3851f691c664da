// How noise and what is made of it are cut into tiles, which threads take several at a time.
#pragma once

#include <cstdint>

#include "noise.h"

namespace prgec {

// Negative seeds and steps wrap, as the masks of the eager reference do.
inline NoiseKey noise_key(int64_t seed, int64_t step, int64_t site) {
  return {static_cast<uint64_t>(seed), static_cast<uint32_t>(step), static_cast<uint32_t>(site)};
}

inline int64_t num_tiles(int64_t numel) {
  return (numel + kTileElements - 1) / kTileElements;
}

// Elements of tile `tile` of a tensor of `numel` elements.
inline int tile_size(int64_t tile, int64_t numel) {
  const int64_t rest = numel - tile * kTileElements;
  return static_cast<int>(rest < kTileElements ? rest : kTileElements);
}

// Tiles a thread takes at a time: tens of microseconds of work, so that small sites stay on one thread.
constexpr int64_t kTileGrain = 8;

} // namespace prgec
