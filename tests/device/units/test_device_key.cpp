#include <cstdio>
#include <string>

#include "check.h"
#include "device_key.h"

namespace {

std::string write_key(size_t size) {
  const std::string path = check::scratch("device-key");
  FILE* file = std::fopen(path.c_str(), "wb");
  for (size_t i = 0; i < size; ++i) {
    std::fputc(static_cast<int>(i), file);
  }
  std::fclose(file);
  return path;
}

} // namespace

TEST(what_follows_from_a_key_is_an_hmac_of_purpose_and_content) {
  const auto key = prge::DeviceKey::open(write_key(32));
  CHECK(key.ok());
  // python: hmac.new(bytes(range(32)), b"row\0abc", "sha256").hexdigest()
  CHECK(key->of("row", "abc").hex() == "a125ad4a9f7a83da157e063a59a9467c86139df9598c61ed78d51b5467bf456b");
  CHECK(!(key->of("row", "abd") == key->of("row", "abc")));
  CHECK(!(key->of("rows", "abc") == key->of("row", "abc")));
}

TEST(a_key_has_32_bytes) {
  CHECK(!prge::DeviceKey::open(write_key(31)).ok());
  CHECK(!prge::DeviceKey::open(check::scratch("device-key") + "x").ok());
}

TEST(numbers_have_their_lowest_byte_first) {
  std::string text;
  prge::append_u64(text, 0x0102030405060708);
  CHECK(text == std::string("\x08\x07\x06\x05\x04\x03\x02\x01"));
  CHECK(prge::read_u64(reinterpret_cast<const uint8_t*>(text.data())) == 0x0102030405060708);
}
