// Philox4x32-10, the counter-based generator of prgec. Header only, no dependencies, no state.
//
// Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
// The Python twin is prgec/runtime_ops/philox.py; published known answers test both.
#pragma once

#include <cstdint>

#if defined(__GNUC__)
// Callers are compiled for several instruction sets; a call that is not inlined would be compiled for one.
#define PRGEC_INLINE inline __attribute__((always_inline))
#else
#define PRGEC_INLINE inline
#endif

namespace prgec {

struct Words4 {
  uint32_t x0;
  uint32_t x1;
  uint32_t x2;
  uint32_t x3;
};

struct PhiloxKey {
  uint32_t k0;
  uint32_t k1;
};

PRGEC_INLINE Words4 philox4x32(Words4 counter, PhiloxKey key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  Words4 c = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * c.x0;
    const uint64_t product1 = kMultiplier1 * c.x2;
    const uint32_t high0 = static_cast<uint32_t>(product0 >> 32);
    const uint32_t high1 = static_cast<uint32_t>(product1 >> 32);
    c = {
        high1 ^ c.x1 ^ key.k0, static_cast<uint32_t>(product1), high0 ^ c.x3 ^ key.k1, static_cast<uint32_t>(product0)};
    key = {key.k0 + 0x9E3779B9u, key.k1 + 0xBB67AE85u};
  }
  return c;
}

} // namespace prgec
