// prge_noise: how many standard normals a second one core of this machine makes, the inner loop of every update.
#include <chrono>
#include <cstdio>

#include "noise.h"

int main() {
  constexpr int kNumTiles = 1 << 16;
  float tile[prgec::kTileElements];
  float sum = 0.0f;
  double best = 0.0;
  for (uint32_t repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < kNumTiles; ++i) {
      prgec::fill_normals({42, repeat, 0}, 0, i * prgec::kTileBlocks, prgec::kTileBlocks, tile);
      sum += tile[i % prgec::kTileElements];
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double rate = static_cast<double>(kNumTiles) * prgec::kTileElements / seconds.count();
    best = rate > best ? rate : best;
  }
  std::printf("%.0f million normals a second and core (checksum %g)\n", best / 1e6, static_cast<double>(sum));
  return 0;
}
