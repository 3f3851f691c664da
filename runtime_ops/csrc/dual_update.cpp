// Streams over tiles of 256 elements: the noise of both steps lives on the stack, never in memory. Tiles are
// independent, so the split over threads does not change a bit.
#include "dual_update.h"

#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <cstring>

#include "tiles.h"

namespace prgec {
namespace {

struct Keyed {
  const DualUpdate& call;
  // lr / q, rounded once.
  float rate;
  bool has_update;
  NoiseKey before;
  NoiseKey now;
};

void update_tile(const Keyed& keyed, int64_t tile, int size, float* master) {
  const DualUpdate& call = keyed.call;
  float acc[kTileElements] = {};
  float z[kTileElements];
  for (int64_t i = 0; i < call.q; ++i) {
    fill_normals(keyed.before, static_cast<uint32_t>(i), static_cast<uint32_t>(tile * kTileBlocks), (size + 3) / 4, z);
    const float g = call.g[i];
    for (int e = 0; e < size; ++e) {
      acc[e] = acc[e] + g * z[e];
    }
  }
  for (int e = 0; e < size; ++e) {
    master[e] = master[e] - keyed.rate * acc[e];
  }
}

// How far the copies of query i are from the master: eps * z, of an eps that is not zero.
void draw_moves(const Keyed& keyed, int64_t i, int64_t tile, int size, float* moves) {
  float z[kTileElements];
  fill_normals(keyed.now, static_cast<uint32_t>(i), static_cast<uint32_t>(tile * kTileBlocks), (size + 3) / 4, z);
  for (int e = 0; e < size; ++e) {
    moves[e] = keyed.call.eps * z[e];
  }
}

void perturb_tile(const Keyed& keyed, int64_t tile, int size, const float* master, float* copies) {
  const DualUpdate& call = keyed.call;
  float moves[kTileElements];
  for (int64_t i = 0; i < call.q; ++i) {
    float* plus = copies + 2 * i * call.numel;
    float* minus = plus + call.numel;
    if (call.eps == 0.0f) {
      std::memcpy(plus, master, size * sizeof(float));
      std::memcpy(minus, master, size * sizeof(float));
      continue;
    }
    draw_moves(keyed, i, tile, size, moves);
    for (int e = 0; e < size; ++e) {
      plus[e] = master[e] + moves[e];
      minus[e] = master[e] - moves[e];
    }
  }
}

void move_tile(const Keyed& keyed, int64_t tile, int size, float* moves) {
  for (int64_t i = 0; i < keyed.call.q; ++i) {
    float* of_query = moves + i * keyed.call.numel;
    if (keyed.call.eps == 0.0f) {
      std::fill_n(of_query, size, 0.0f);
    } else {
      draw_moves(keyed, i, tile, size, of_query);
    }
  }
}

void run_tile(const Keyed& keyed, int64_t tile) {
  const DualUpdate& call = keyed.call;
  const int size = tile_size(tile, call.numel);
  const int64_t first = tile * kTileElements;
  float* master = call.master + first;
  if (keyed.has_update) {
    update_tile(keyed, tile, size, master);
  }
  if (call.copies != nullptr) {
    perturb_tile(keyed, tile, size, master, call.copies + first);
  }
  if (call.moves != nullptr) {
    move_tile(keyed, tile, size, call.moves + first);
  }
}

} // namespace

bool dual_update(const DualUpdate& call) {
  const int64_t before = static_cast<int64_t>(static_cast<uint64_t>(call.step) - 1u);
  const Keyed keyed = {
      call, call.lr / static_cast<float>(call.q),
      std::any_of(call.g, call.g + call.q, [](float value) { return value != 0.0f; }),
      noise_key(call.seed, before, call.site), noise_key(call.seed, call.step, call.site)};
  return executorch::extension::parallel_for(0, num_tiles(call.numel), kTileGrain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      run_tile(keyed, tile);
    }
  });
}

} // namespace prgec
