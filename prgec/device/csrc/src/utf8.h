// UTF-8 from files nobody vouches for.
#pragma once

#include <string>
#include <string_view>

namespace prge {

bool is_utf8(std::string_view text);

// Puts a question mark for every byte that a terminal should not get: bytes that are not UTF-8, controls, and
// characters that show nothing or turn the direction of writing.
void make_printable(std::string& text);

} // namespace prge
