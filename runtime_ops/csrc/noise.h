// Standard normals as a pure function of (seed, step, site, query, element). No state, no heap, no ExecuTorch.
//
// The specification and the eager twin are in prgec/runtime_ops/noise.py: the bits are equal.
#pragma once

#include <cstdint>

namespace prgec {

struct NoiseKey {
  uint64_t seed;
  uint32_t step;
  uint32_t site;
};

// A tile is what fits a kernel's stack: 64 blocks of four elements.
constexpr int kTileBlocks = 64;
constexpr int kTileElements = 4 * kTileBlocks;

// Writes the 4 * num_blocks normals of blocks [first_block, first_block + num_blocks) of one query.
void fill_normals(const NoiseKey& key, uint32_t query, uint32_t first_block, int num_blocks, float* out);

} // namespace prgec
