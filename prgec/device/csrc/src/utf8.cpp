#include "utf8.h"

#include <cstddef>
#include <cstdint>

namespace prge {

namespace {

struct Character {
  uint32_t code;
  size_t num_bytes; // 0 where the bytes are not UTF-8
};

// The first character of a text that is not empty.
Character decode(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t first = byte(0);
  const size_t num_bytes = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (num_bytes == 0 || first > 0xf4 || num_bytes > text.size()) {
    return {0, 0};
  }
  uint32_t code = num_bytes == 1 ? first : first & (0x7fu >> num_bytes);
  for (size_t i = 1; i < num_bytes; ++i) {
    if (byte(i) >> 6 != 2) {
      return {0, 0};
    }
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool is_overlong = (num_bytes == 3 && code < 0x800) || (num_bytes == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  return is_overlong || is_surrogate || code > 0x10ffff ? Character{0, 0} : Character{code, num_bytes};
}

bool is_shown(uint32_t code) {
  constexpr struct {
    uint32_t first, last;
  } kHidden[] = {{0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x61c, 0x61c},
                 {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
                 {0xe000, 0xf8ff}, {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0xe0000, 0x10ffff}};
  for (const auto& range : kHidden) {
    if (code >= range.first && code <= range.last) {
      return false;
    }
  }
  return true;
}

} // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t num_bytes = decode(text).num_bytes;
    if (num_bytes == 0) {
      return false;
    }
    text.remove_prefix(num_bytes);
  }
  return true;
}

void make_printable(std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const Character found = decode(std::string_view(text).substr(at));
    const size_t num_bytes = found.num_bytes == 0 ? 1 : found.num_bytes;
    if (found.num_bytes == 0 || !is_shown(found.code)) {
      text.replace(at, num_bytes, num_bytes, '?');
    }
    at += num_bytes;
  }
}

} // namespace prge
