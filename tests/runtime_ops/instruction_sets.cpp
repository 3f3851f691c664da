// Compares the noise of every instruction set this processor has with the portable scalar form, bit for bit.
// Prints how many sets were compared and a checksum of all bits; exits with 1 at the first difference.
#include <cstdio>
#include <cstring>

#include "noise.cpp"

namespace {

// FNV-1a over what the scalar form makes: equal on every machine.
uint64_t checksum = 0xcbf29ce484222325u;

void add_to_checksum(const float* values, int count) {
  for (int i = 0; i < count; ++i) {
    checksum = (checksum ^ prgec::bits_of_float(values[i])) * 0x100000001b3u;
  }
}

int compare(const char* name, prgec::Fill fill) {
  for (uint32_t trial = 0; trial < 4000; ++trial) {
    const int blocks = static_cast<int>(trial % prgec::kTileBlocks) + 1;
    const prgec::BlockRange range = {
        trial * 977u - 40u, trial % 7, trial % 131, trial * 3u, {trial * 2654435761u, trial}};
    uint32_t words[prgec::kTileElements];
    float expected[prgec::kTileElements];
    float actual[prgec::kTileElements];
    prgec::philox_scalar(range, 0, blocks, words, prgec::kTileBlocks);
    prgec::normals_of(words, blocks, expected);
    fill(range, blocks, actual);
    if (fill == prgec::fill_portable) {
      add_to_checksum(actual, 4 * blocks);
    }
    if (std::memcmp(expected, actual, sizeof(float) * 4 * static_cast<size_t>(blocks)) != 0) {
      std::printf("%s differs in trial %u\n", name, trial);
      return 1;
    }
  }
  return 0;
}

} // namespace

int main() {
  int sets = 1;
  int failures = compare("portable", prgec::fill_portable);
#if defined(PRGEC_X86)
  if (__builtin_cpu_supports("avx2")) {
    failures += compare("avx2", prgec::fill_avx2);
    ++sets;
  }
  if (__builtin_cpu_supports("avx512f")) {
    failures += compare("avx512", prgec::fill_avx512);
    ++sets;
  }
#endif
  std::printf("%d %016llx\n", sets, static_cast<unsigned long long>(checksum));
  return failures != 0;
}
