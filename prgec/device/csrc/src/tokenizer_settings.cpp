#include "tokenizer_settings.h"

#include <string_view>

#include "json.h"

namespace prge {

namespace {

constexpr std::string_view kMember = "prgec_tokenizer.json", kMark = "PK\x03\x04";
// A member's own header: its size, and the offsets of its fields.
constexpr size_t kHeaderBytes = 30, kFlagsAt = 6, kMethodAt = 8, kSizeAt = 18, kNameSizeAt = 26, kExtraSizeAt = 28;

uint64_t number(std::string_view bytes, size_t at, size_t size) {
  uint64_t value = 0;
  for (size_t i = size; i-- > 0;) {
    value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  }
  return value;
}

} // namespace

// Members follow one another, stored as they are.
std::optional<uint32_t> find_eos_id(const uint8_t* zip, size_t size) {
  std::string_view left(reinterpret_cast<const char*>(zip), size);
  while (left.size() >= kHeaderBytes && left.substr(0, kMark.size()) == kMark) {
    const bool is_stored = number(left, kFlagsAt, 2) == 0 && number(left, kMethodAt, 2) == 0;
    const uint64_t name_size = number(left, kNameSizeAt, 2), body_size = number(left, kSizeAt, 4);
    const uint64_t body_at = kHeaderBytes + name_size + number(left, kExtraSizeAt, 2);
    if (!is_stored || body_at + body_size > left.size()) {
      return std::nullopt;
    }
    if (left.substr(kHeaderBytes, name_size) == kMember) {
      Json settings;
      int64_t id = 0;
      const bool is_good =
          Json::parse(left.substr(body_at, body_size), settings) && settings["eos_id"].integer(0, UINT32_MAX, id);
      return is_good ? std::optional<uint32_t>(static_cast<uint32_t>(id)) : std::nullopt;
    }
    left.remove_prefix(body_at + body_size);
  }
  return std::nullopt;
}

} // namespace prge
