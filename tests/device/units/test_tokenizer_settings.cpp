#include "check.h"
#include "tokenizer_settings.h"

// A member of a zip, stored as it is.
static std::string member(const std::string& name, const std::string& body, char method = 0) {
  std::string head("PK\x03\x04\x14\0\0\0", 8);
  head += method;
  head += std::string(9, '\0'); // method, time, date and checksum
  for (const size_t size : {body.size(), body.size()}) {
    for (int shift = 0; shift < 32; shift += 8) {
      head += static_cast<char>(size >> shift);
    }
  }
  head += static_cast<char>(name.size());
  return head + std::string(3, '\0') + name + body;
}

static std::optional<uint32_t> eos_of(const std::string& zip) {
  return prge::find_eos_id(reinterpret_cast<const uint8_t*>(zip.data()), zip.size());
}

static const char* const kName = "prgec_tokenizer.json";

TEST(the_id_is_found_behind_other_members) {
  CHECK(eos_of(member("tokenizer.json", "{}") + member(kName, R"({"bos_id": 1, "eos_id": 7})") + "PK") == 7u);
}

TEST(a_tokenizer_may_have_none) {
  CHECK(!eos_of(member(kName, R"({"eos_id": null})")));
  CHECK(!eos_of(member("tokenizer.json", R"({"eos_id": 7})")));
}

TEST(what_is_damaged_says_nothing) {
  const std::string good = member(kName, R"({"eos_id": 7})");
  for (size_t size = 0; size < good.size(); ++size) {
    CHECK(!eos_of(good.substr(0, size)));
  }
  CHECK(!eos_of(member(kName, R"({"eos_id": 7})", 8)));
  CHECK(!eos_of(member(kName, R"({"eos_id": -7})")));
  CHECK(!eos_of(member(kName, R"({"eos_id": 99999999999})")));
  CHECK(!eos_of(member(kName, "no JSON")));
}
