// CRC-32 as zlib computes it, and SHA-256 (FIPS 180-4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace prge {

// `crc` continues an earlier checksum.
uint32_t crc32(const void* data, size_t size, uint32_t crc = 0);

struct Digest {
  uint8_t bytes[32];
  bool operator==(const Digest& other) const;
  std::string hex() const;
};

class Sha256 {
 public:
  Sha256& update(const void* data, size_t size);
  Digest finish();

 private:
  void block(const uint8_t* data);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t size_ = 0;
  uint8_t pending_[64];
};

} // namespace prge
