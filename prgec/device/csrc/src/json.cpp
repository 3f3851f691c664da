#include "json.h"

#include <cstdio>
#include <cstdlib>

#include "utf8.h"

namespace prge {

namespace {

constexpr int kMaxDepth = 16;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  bool document(Json& out) {
    return value(out, 0) && (space(), at_ == text_.size());
  }

 private:
  bool value(Json& out, int depth) {
    space();
    if (depth > kMaxDepth || at_ == text_.size()) {
      return false;
    }
    switch (text_[at_]) {
      case '{':
        return object(out, depth);
      case '[':
        return array(out, depth);
      case '"':
        out.kind = Json::Kind::String;
        return string(out.text);
      case 't':
        return word("true", Json::Kind::True, out);
      case 'f':
        return word("false", Json::Kind::False, out);
      case 'n':
        return word("null", Json::Kind::Null, out);
      default:
        return number(out);
    }
  }

  bool object(Json& out, int depth) {
    out.kind = Json::Kind::Object;
    ++at_;
    if (accept('}')) {
      return true;
    }
    do {
      out.members.emplace_back();
      space();
      if (!string(out.members.back().first) || !accept(':') || !value(out.members.back().second, depth + 1)) {
        return false;
      }
    } while (accept(','));
    return accept('}');
  }

  bool array(Json& out, int depth) {
    out.kind = Json::Kind::Array;
    ++at_;
    if (accept(']')) {
      return true;
    }
    do {
      out.items.emplace_back();
      if (!value(out.items.back(), depth + 1)) {
        return false;
      }
    } while (accept(','));
    return accept(']');
  }

  bool word(std::string_view expected, Json::Kind kind, Json& out) {
    out.kind = kind;
    const bool is_there = text_.substr(at_, expected.size()) == expected;
    at_ += expected.size();
    return is_there;
  }

  bool number(Json& out) {
    out.kind = Json::Kind::Number;
    const size_t first = at_;
    while (at_ < text_.size() && std::string_view("+-.0123456789eE").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
    out.text = std::string(text_.substr(first, at_ - first));
    return at_ > first;
  }

  bool string(std::string& out) {
    if (at_ == text_.size() || text_[at_++] != '"') {
      return false;
    }
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') {
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) {
        return false;
      }
      if (c != '\\') {
        out += c;
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  bool escape(std::string& out) {
    static const std::string_view names = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
    if (at_ == text_.size()) {
      return false;
    }
    const char c = text_[at_++];
    if (const size_t place = names.find(c); place != std::string_view::npos) {
      out += meant[place];
      return true;
    }
    uint32_t code = 0;
    if (c != 'u' || !hex4(code)) {
      return false;
    }
    if (code >= 0xd800 && code < 0xdc00) {
      uint32_t low = 0;
      if (text_.substr(at_, 2) != "\\u" || (at_ += 2, !hex4(low)) || low < 0xdc00 || low > 0xdfff) {
        return false;
      }
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
      return false;
    }
    append_utf8(out, code);
    return true;
  }

  bool hex4(uint32_t& out) {
    for (int i = 0; i < 4; ++i) {
      const std::string_view digits = "0123456789abcdef0123456789ABCDEF";
      const size_t digit = at_ < text_.size() ? digits.find(text_[at_++]) : std::string_view::npos;
      if (digit == std::string_view::npos) {
        return false;
      }
      out = out * 16 + static_cast<uint32_t>(digit % 16);
    }
    return true;
  }

  static void append_utf8(std::string& out, uint32_t code) {
    if (code < 0x80) {
      out += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    out += static_cast<char>((0xf0 << (3 - more) & 0xff) | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i) {
      out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
    }
  }

  void space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }

  bool accept(char expected) {
    space();
    if (at_ == text_.size() || text_[at_] != expected) {
      return false;
    }
    ++at_;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

} // namespace

bool Json::parse(std::string_view text, Json& out) {
  return is_utf8(text) && Parser(text).document(out);
}

const Json& Json::operator[](std::string_view name) const {
  static const Json null;
  for (const auto& member : members) {
    if (member.first == name) {
      return member.second;
    }
  }
  return null;
}

bool Json::integer(int64_t low, int64_t high, int64_t& out) const {
  if (kind != Kind::Number || text.size() > 19 || text.find_first_of(".eE+") != std::string::npos) {
    return false;
  }
  char* end = nullptr;
  out = std::strtoll(text.c_str(), &end, 10);
  return *end == '\0' && out >= low && out <= high;
}

void append_quoted(std::string& out, std::string_view text) {
  static const std::string_view special = "\"\\\b\f\n\r\t", names = "\"\\bfnrt";
  out += '"';
  for (const char c : text) {
    if (const size_t place = special.find(c); place != std::string_view::npos) {
      out += '\\';
      out += names[place];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  out += '"';
}

} // namespace prge
