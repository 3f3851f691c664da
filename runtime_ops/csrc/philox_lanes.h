// Philox4x32-10 of consecutive blocks, several blocks to a vector register. The words are those of philox.h.
//
// A compiler vectorises the scalar form with 64-bit lanes, half of them empty. Multiplying even and odd 32-bit lanes
// apart fills the registers: about three times the words a second with AVX-512, where noise is most of an update.
#pragma once

#include <cstdint>

#include "philox.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define PRGEC_X86 1
#define PRGEC_TARGET(isa) __attribute__((target(isa)))
// Apart from its caller, so that the pragma below reaches it; a call makes 256 words.
#define PRGEC_NOINLINE __attribute__((noinline))
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace prgec {

// The counter of block `first + b` is {first + b, query, site, seed_high}.
struct BlockRange {
  uint32_t first;
  uint32_t query;
  uint32_t site;
  uint32_t seed_high;
  PhiloxKey key;
};

constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

// Writes word j of block b to words[j * stride + b], for b in [begin, end).
PRGEC_INLINE void philox_scalar(const BlockRange& range, int begin, int end, uint32_t* words, int stride) {
  for (int b = begin; b < end; ++b) {
    const uint32_t block = range.first + static_cast<uint32_t>(b);
    const Words4 x = philox4x32({block, range.query, range.site, range.seed_high}, range.key);
    words[b] = x.x0;
    words[stride + b] = x.x1;
    words[2 * stride + b] = x.x2;
    words[3 * stride + b] = x.x3;
  }
}

#if defined(PRGEC_X86)

// GCC 12's own header leaves registers undefined on purpose and is warned about it (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

// Writes the blocks [0, 16 n) it can and returns their number.
PRGEC_TARGET("avx512f")
PRGEC_NOINLINE inline int philox_avx512(const BlockRange& range, int num_blocks, uint32_t* words, int stride) {
  const __m512i m0 = _mm512_set1_epi64(kPhiloxMultiplier0);
  const __m512i m1 = _mm512_set1_epi64(kPhiloxMultiplier1);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  constexpr __mmask16 kOdd = 0xaaaa;
  int b = 0;
  for (; b + 16 <= num_blocks; b += 16) {
    __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(range.first + static_cast<uint32_t>(b))), lane);
    __m512i c1 = _mm512_set1_epi32(static_cast<int>(range.query));
    __m512i c2 = _mm512_set1_epi32(static_cast<int>(range.site));
    __m512i c3 = _mm512_set1_epi32(static_cast<int>(range.seed_high));
    PhiloxKey key = range.key;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const __m512i even0 = _mm512_mul_epu32(c0, m0);
      const __m512i odd0 = _mm512_mul_epu32(_mm512_srli_epi64(c0, 32), m0);
      const __m512i even1 = _mm512_mul_epu32(c2, m1);
      const __m512i odd1 = _mm512_mul_epu32(_mm512_srli_epi64(c2, 32), m1);
      const __m512i high0 = _mm512_mask_blend_epi32(kOdd, _mm512_srli_epi64(even0, 32), odd0);
      const __m512i high1 = _mm512_mask_blend_epi32(kOdd, _mm512_srli_epi64(even1, 32), odd1);
      c0 = _mm512_xor_si512(_mm512_xor_si512(high1, c1), _mm512_set1_epi32(static_cast<int>(key.k0)));
      c2 = _mm512_xor_si512(_mm512_xor_si512(high0, c3), _mm512_set1_epi32(static_cast<int>(key.k1)));
      c1 = _mm512_mask_blend_epi32(kOdd, even1, _mm512_slli_epi64(odd1, 32));
      c3 = _mm512_mask_blend_epi32(kOdd, even0, _mm512_slli_epi64(odd0, 32));
      key = {key.k0 + kPhiloxWeyl0, key.k1 + kPhiloxWeyl1};
    }
    _mm512_storeu_si512(words + b, c0);
    _mm512_storeu_si512(words + stride + b, c1);
    _mm512_storeu_si512(words + 2 * stride + b, c2);
    _mm512_storeu_si512(words + 3 * stride + b, c3);
  }
  return b;
}

// Writes the blocks [0, 8 n) it can and returns their number.
PRGEC_TARGET("avx2")
PRGEC_NOINLINE inline int philox_avx2(const BlockRange& range, int num_blocks, uint32_t* words, int stride) {
  const __m256i m0 = _mm256_set1_epi64x(kPhiloxMultiplier0);
  const __m256i m1 = _mm256_set1_epi64x(kPhiloxMultiplier1);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  constexpr int kOdd = 0xaa;
  int b = 0;
  for (; b + 8 <= num_blocks; b += 8) {
    __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(range.first + static_cast<uint32_t>(b))), lane);
    __m256i c1 = _mm256_set1_epi32(static_cast<int>(range.query));
    __m256i c2 = _mm256_set1_epi32(static_cast<int>(range.site));
    __m256i c3 = _mm256_set1_epi32(static_cast<int>(range.seed_high));
    PhiloxKey key = range.key;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const __m256i even0 = _mm256_mul_epu32(c0, m0);
      const __m256i odd0 = _mm256_mul_epu32(_mm256_srli_epi64(c0, 32), m0);
      const __m256i even1 = _mm256_mul_epu32(c2, m1);
      const __m256i odd1 = _mm256_mul_epu32(_mm256_srli_epi64(c2, 32), m1);
      const __m256i high0 = _mm256_blend_epi32(_mm256_srli_epi64(even0, 32), odd0, kOdd);
      const __m256i high1 = _mm256_blend_epi32(_mm256_srli_epi64(even1, 32), odd1, kOdd);
      c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32(static_cast<int>(key.k0)));
      c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32(static_cast<int>(key.k1)));
      c1 = _mm256_blend_epi32(even1, _mm256_slli_epi64(odd1, 32), kOdd);
      c3 = _mm256_blend_epi32(even0, _mm256_slli_epi64(odd0, 32), kOdd);
      key = {key.k0 + kPhiloxWeyl0, key.k1 + kPhiloxWeyl1};
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + b), c0);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + stride + b), c1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 2 * stride + b), c2);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 3 * stride + b), c3);
  }
  return b;
}

#pragma GCC diagnostic pop

#elif defined(__ARM_NEON)

// Writes the blocks [0, 4 n) it can and returns their number.
PRGEC_INLINE int philox_neon(const BlockRange& range, int num_blocks, uint32_t* words, int stride) {
  constexpr uint32_t kLanes[4] = {0, 1, 2, 3};
  const uint32x2_t m0 = vdup_n_u32(kPhiloxMultiplier0);
  const uint32x2_t m1 = vdup_n_u32(kPhiloxMultiplier1);
  int b = 0;
  for (; b + 4 <= num_blocks; b += 4) {
    uint32x4_t c0 = vaddq_u32(vdupq_n_u32(range.first + static_cast<uint32_t>(b)), vld1q_u32(kLanes));
    uint32x4_t c1 = vdupq_n_u32(range.query);
    uint32x4_t c2 = vdupq_n_u32(range.site);
    uint32x4_t c3 = vdupq_n_u32(range.seed_high);
    PhiloxKey key = range.key;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const uint32x4_t low_half0 = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(c0), m0));
      const uint32x4_t high_half0 = vreinterpretq_u32_u64(vmull_u32(vget_high_u32(c0), m0));
      const uint32x4_t low_half1 = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(c2), m1));
      const uint32x4_t high_half1 = vreinterpretq_u32_u64(vmull_u32(vget_high_u32(c2), m1));
      const uint32x4x2_t product0 = vuzpq_u32(low_half0, high_half0);
      const uint32x4x2_t product1 = vuzpq_u32(low_half1, high_half1);
      c0 = veorq_u32(veorq_u32(product1.val[1], c1), vdupq_n_u32(key.k0));
      c2 = veorq_u32(veorq_u32(product0.val[1], c3), vdupq_n_u32(key.k1));
      c1 = product1.val[0];
      c3 = product0.val[0];
      key = {key.k0 + kPhiloxWeyl0, key.k1 + kPhiloxWeyl1};
    }
    vst1q_u32(words + b, c0);
    vst1q_u32(words + stride + b, c1);
    vst1q_u32(words + 2 * stride + b, c2);
    vst1q_u32(words + 3 * stride + b, c3);
  }
  return b;
}

#endif

} // namespace prgec
