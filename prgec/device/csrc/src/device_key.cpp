#include "device_key.h"

#include <cstring>

#include "fail.h"
#include "files.h"

namespace prge {

namespace {

constexpr size_t kKeyBytes = 32, kBlockBytes = 64;

} // namespace

Result<DeviceKey> DeviceKey::open(const std::string& path) {
  File file;
  DeviceKey found;
  PRGE_TRY(file.open_shared(path));
  PRGE_TRY(file.read(found.key_));
  if (found.key_.size() != kKeyBytes) {
    return fail(
        Error::InvalidExternalData, "a device key has %zu bytes, this file %zu (%s)", kKeyBytes, found.key_.size(),
        path.c_str());
  }
  return found;
}

// HMAC of RFC 2104 over SHA-256, of a key no longer than a block.
Digest DeviceKey::of(const std::string& purpose, const std::string& content) const {
  uint8_t inner[kBlockBytes] = {}, outer[kBlockBytes] = {};
  std::memcpy(inner, key_.data(), key_.size());
  std::memcpy(outer, key_.data(), key_.size());
  for (size_t i = 0; i < kBlockBytes; ++i) {
    inner[i] ^= 0x36;
    outer[i] ^= 0x5c;
  }
  // The zero that ends the purpose is part of the content.
  const Digest digest = Sha256()
                            .update(inner, kBlockBytes)
                            .update(purpose.c_str(), purpose.size() + 1)
                            .update(content.data(), content.size())
                            .finish();
  return Sha256().update(outer, kBlockBytes).update(digest.bytes, sizeof(digest.bytes)).finish();
}

void append_u64(std::string& out, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    out += static_cast<char>(value >> shift);
  }
}

uint64_t read_u64(const uint8_t* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) {
    value = value << 8 | bytes[i];
  }
  return value;
}

} // namespace prge
