#include "check.h"
#include "utf8.h"

using prge::is_utf8;

static std::string shown(std::string text) {
  prge::make_printable(text);
  return text;
}

TEST(good_text_stays) {
  for (const char* text : {"", "plain", "/home/zo\xc3\xab/\xe6\xa8\xa1", "\xf0\x9f\x8c\xb1"}) {
    CHECK(is_utf8(text));
    CHECK(shown(text) == text);
  }
}

TEST(broken_bytes_are_told) {
  // A lone byte, a lone tail, a head without its tail, overlong forms, a surrogate, beyond the last code point.
  for (const char* text :
       {"\xff", "\x80", "a\xc3", "\xe6\xa8", "\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"}) {
    CHECK(!is_utf8(text));
    CHECK(is_utf8(shown(text)));
  }
  CHECK(
      shown(
          "a\xff"
          "b\xc3") == "a?b?");
  CHECK(shown("\xc3\xc3\xab") == "?\xc3\xab");
}

TEST(what_steers_a_terminal_is_hidden) {
  CHECK(shown("a\x1b[31mb\n\x7f") == "a?[31mb??");
  CHECK(
      shown(
          "\xc2\x9b"
          "31m") == "??31m"); // the same control in one character
  CHECK(
      shown(
          "\xe2\x80\xae"
          "cod.exe") == "???cod.exe"); // writes from right to left
  CHECK(shown(std::string("a\0b", 3)) == "a?b");
}

TEST(a_message_is_printable_however_it_is_cut) {
  std::string name;
  for (int i = 0; i < 2000; ++i) {
    name += "\xc3\xab";
  }
  for (const char* head : {"%s", "x%s"}) {
    prge::fail(prge::Error::InvalidProgram, head[0] == 'x' ? "x%s" : "%s", name.c_str());
    CHECK(is_utf8(prge::last_error()));
  }
}
