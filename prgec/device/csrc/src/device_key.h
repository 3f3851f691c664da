// Hashes under a key that only this device has, as prgec's side/row_ids.py makes them.
#pragma once

#include <cstdint>
#include <string>

#include "checksum.h"
#include "prge/error.h"

namespace prge {

class DeviceKey {
 public:
  // Reads a key of 32 bytes.
  static Result<DeviceKey> open(const std::string& path);
  // 32 bytes that follow from a content, and that nobody finds without the key.
  Digest of(const std::string& purpose, const std::string& content) const;

 private:
  std::string key_;
};

// Eight bytes, the lowest first.
void append_u64(std::string& out, uint64_t value);
uint64_t read_u64(const uint8_t* bytes);

} // namespace prge
