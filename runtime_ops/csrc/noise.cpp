// Every f32 operation below is rounded on its own, in the order written: this file is compiled with -ffp-contract=off
// and never with -ffast-math. -fno-math-errno and -fno-trapping-math change no value; they let the loop vectorise.
#include "noise.h"

#include <cmath>
#include <cstring>

#include "philox_lanes.h"

namespace prgec {

namespace {

PRGEC_INLINE float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

PRGEC_INLINE uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// ln(((word >> 8) + 1) * 2^-24)
PRGEC_INLINE float log_uniform(uint32_t word) {
  // Through int32: its conversion to f32 is one vector instruction, that of uint32 is not.
  const float k = static_cast<float>(static_cast<int32_t>((word >> 8) + 1));
  const uint32_t i = bits_of_float(k) + (0x3f800000u - 0x3f3504f3u);
  const float e = static_cast<float>(static_cast<int32_t>(i >> 23) - (127 + 24));
  const float f = float_of_bits((i & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = f * f;
  float p = f * -0x1.43b246p-4f + 0x1.02814ep-3f;
  p = p * f + -0x1.0a33eap-3f;
  p = p * f + 0x1.231ce6p-3f;
  p = p * f + -0x1.54d03ep-3f;
  p = p * f + 0x1.999f14p-3f;
  p = p * f + -0x1.0000cep-2f;
  p = p * f + 0x1.555554p-2f;
  float y = (p * f) * s;
  y = y + e * -0x1.bd0106p-13f;
  y = y - s * 0.5f;
  return (f + y) + e * 0x1.63p-1f;
}

// One Box-Muller pair.
PRGEC_INLINE void normal_pair(uint32_t xa, uint32_t xb, float& first, float& second) {
  const float radius = std::sqrt(log_uniform(xa) * -2.0f);
  const int32_t n = 2 * static_cast<int32_t>((xb >> 8) & 0x3fffffu) - 0x3fffff;
  const float t = static_cast<float>(n) * 0x1.921fb6p-23f;
  const float u = t * t;
  const float s = t + t * (u * ((u * -0x1.9ac9bp-13f + 0x1.110c28p-7f) * u + -0x1.555552p-3f));
  const float c = (1.0f - u * 0.5f) + (u * u) * ((u * 0x1.9bd89cp-16f + -0x1.6c12d2p-10f) * u + 0x1.555554p-5f);
  // The quadrant chooses and negates in integer arithmetic: exact, and free of branches.
  const uint32_t quadrant = xb >> 30;
  const uint32_t swap = 0u - (quadrant & 1u);
  const uint32_t s_bits = bits_of_float(s);
  const uint32_t c_bits = bits_of_float(c);
  const uint32_t difference = (s_bits ^ c_bits) & swap;
  const uint32_t cos_sign = ((quadrant + 1u) & 2u) << 30;
  const uint32_t sin_sign = (quadrant & 2u) << 30;
  first = radius * float_of_bits(c_bits ^ difference ^ cos_sign);
  second = radius * float_of_bits(s_bits ^ difference ^ sin_sign);
}

// Normals of `num_blocks` blocks from words laid out word by word.
PRGEC_INLINE void normals_of(const uint32_t* words, int num_blocks, float* out) {
  for (int b = 0; b < num_blocks; ++b) {
    normal_pair(words[b], words[kTileBlocks + b], out[4 * b], out[4 * b + 1]);
    normal_pair(words[2 * kTileBlocks + b], words[3 * kTileBlocks + b], out[4 * b + 2], out[4 * b + 3]);
  }
}

// One function per instruction set, chosen when the library is loaded. None of these sets implies fused multiply-add,
// so all of them give the same bits.
using Fill = void (*)(const BlockRange&, int, float*);

void fill_portable(const BlockRange& range, int num_blocks, float* out) {
  uint32_t words[kTileElements];
#if defined(__ARM_NEON)
  const int done = philox_neon(range, num_blocks, words, kTileBlocks);
#else
  const int done = 0;
#endif
  philox_scalar(range, done, num_blocks, words, kTileBlocks);
  normals_of(words, num_blocks, out);
}

#if defined(PRGEC_X86)
PRGEC_TARGET("avx2")
void fill_avx2(const BlockRange& range, int num_blocks, float* out) {
  uint32_t words[kTileElements];
  const int done = philox_avx2(range, num_blocks, words, kTileBlocks);
  philox_scalar(range, done, num_blocks, words, kTileBlocks);
  normals_of(words, num_blocks, out);
}

PRGEC_TARGET("avx512f")
void fill_avx512(const BlockRange& range, int num_blocks, float* out) {
  uint32_t words[kTileElements];
  const int done = philox_avx512(range, num_blocks, words, kTileBlocks);
  philox_scalar(range, done, num_blocks, words, kTileBlocks);
  normals_of(words, num_blocks, out);
}
#endif

Fill choose_fill() {
#if defined(PRGEC_X86)
  if (__builtin_cpu_supports("avx512f")) {
    return fill_avx512;
  }
  if (__builtin_cpu_supports("avx2")) {
    return fill_avx2;
  }
#endif
  return fill_portable;
}

} // namespace

void fill_normals(const NoiseKey& key, uint32_t query, uint32_t first_block, int num_blocks, float* out) {
  static const Fill fill = choose_fill();
  const PhiloxKey philox_key = {static_cast<uint32_t>(key.seed), key.step};
  fill({first_block, query, key.site, static_cast<uint32_t>(key.seed >> 32), philox_key}, num_blocks, out);
}

} // namespace prgec
