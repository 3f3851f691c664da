// Just enough JSON for a manifest and a safetensors header: a tree of values, read from text nobody vouches for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prge {

struct Json {
  enum class Kind { Null, False, True, Number, String, Array, Object };

  // False where the text is not one JSON value in UTF-8, or nested deeper than any document of ours.
  static bool parse(std::string_view text, Json& out);

  // The member of that name; a null value where there is none.
  const Json& operator[](std::string_view name) const;
  bool is_string() const {
    return kind == Kind::String;
  }
  // False where this is not an integer in [low, high].
  bool integer(int64_t low, int64_t high, int64_t& out) const;

  Kind kind = Kind::Null;
  std::string text; // of a string, decoded to UTF-8; of a number, as written
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;
};

// Appends a string as Python's json.dumps(..., ensure_ascii=False) writes it.
void append_quoted(std::string& out, std::string_view text);

} // namespace prge
