#include "check.h"
#include "json.h"

using prge::Json;

static bool parses(std::string_view text) {
  Json json;
  return Json::parse(text, json);
}

TEST(values) {
  Json json;
  CHECK(Json::parse(R"( {"a": [1, -2e3, true, null], "b": {"c": "d"}} )", json));
  CHECK(json["a"].items.size() == 4);
  CHECK(json["a"].items[1].text == "-2e3");
  CHECK(json["a"].items[2].kind == Json::Kind::True);
  CHECK(json["b"]["c"].text == "d");
  CHECK(json["nothing"]["below"].kind == Json::Kind::Null);
}

TEST(strings_are_decoded) {
  Json json;
  CHECK(Json::parse(R"("\"\\\/\b\f\n\r\t\u00eb\ud83c\udf31")", json));
  CHECK(json.text == "\"\\/\b\f\n\r\t\xc3\xab\xf0\x9f\x8c\xb1");
}

TEST(what_is_no_json_is_refused) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\"}", "{\"a\":}", "tru", "\"a", "\"\\x\"", "\"\\ud83c\"", "\"\\udf31\"", "\"\\u12g4\"",
        "1 2", "\"\n\"", "\"\xff\""}) {
    CHECK(!parses(text));
  }
}

TEST(depth_is_bounded) {
  CHECK(parses(std::string(16, '[') + "1" + std::string(16, ']')));
  CHECK(!parses(std::string(18, '[') + "1" + std::string(18, ']')));
  CHECK(!parses(std::string(100000, '[')));
}

TEST(integers_are_whole_and_in_range) {
  const auto read = [](const char* text, int64_t low, int64_t high) {
    Json json;
    int64_t value = -99;
    return Json::parse(text, json) && json.integer(low, high, value) ? value : -99;
  };
  CHECK(read("12", 0, 12) == 12);
  CHECK(read("-3", -3, 0) == -3);
  CHECK(read("13", 0, 12) == -99);
  CHECK(read("1.0", 0, 12) == -99);
  CHECK(read("1e3", 0, 2000) == -99);
  CHECK(read("\"5\"", 0, 12) == -99);
  CHECK(read("99999999999999999999", 0, INT64_MAX) == -99);
  CHECK(read("1-2", 0, 12) == -99);
}

TEST(quoting_is_pythons) {
  std::string out;
  prge::append_quoted(out, "a\"\\\n\x01\xc3\xab");
  CHECK(out == "\"a\\\"\\\\\\n\\u0001\xc3\xab\"");
}
