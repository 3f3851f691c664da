// Tables are made by hand here, as docs/contract.md says: nothing of the reader takes part.
#include <cstring>

#include "check.h"
#include "checksum.h"
#include "files.h"
#include "program_checksums.h"

using prge::Error;
using prge::ProgramChecksums;

static void write(const std::string& path, const std::string& text) {
  prge::AtomicFile file(path);
  CHECK(file.open() == Error::Ok && file.write(text.data(), text.size()) == Error::Ok && file.commit() == Error::Ok);
}

static std::string part(const std::string& name, const std::string& bytes) {
  return "{\"name\":\"" + name + "\",\"size\":" + std::to_string(bytes.size()) +
      ",\"crc32\":" + std::to_string(prge::crc32(bytes.data(), bytes.size())) + "}";
}

static std::string with_trailer(const std::string& body, const std::string& table) {
  const uint32_t numbers[] = {static_cast<uint32_t>(table.size()), prge::crc32(table.data(), table.size())};
  return body + table + std::string(reinterpret_cast<const char*>(numbers), 8) + "PRGESUMS";
}

static const std::string kGood = with_trailer(
    "instructionsweights",
    "{\"parts\":[" + part("instructions", "instructions") + "," + part("weights", "weights") + "],\"data\":[" +
        part("weights", "beside") + "]}");

// The error for a file with these bytes; empty for none.
static std::string said(const std::string& bytes) {
  const std::string path = check::scratch("program");
  write(path, bytes);
  const auto found = ProgramChecksums::read(path);
  const Error error = !found.ok() ? found.error() : *found ? (*found)->check(path) : Error::NotFound;
  return error == Error::Ok ? "" : error == Error::NotFound ? "none" : prge::last_error();
}

static bool says(const std::string& bytes, const char* what) {
  return said(bytes).find(what) != std::string::npos;
}

TEST(a_program_as_compiled_passes) {
  CHECK(said(kGood).empty());
}

TEST(no_bit_can_change) {
  for (size_t bit = 0; bit < 8 * (kGood.size() - 8); ++bit) {
    std::string bad = kGood;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    CHECK(says(bad, "the program is damaged: "));
  }
}

TEST(the_part_that_differs_is_named) {
  std::string bad = kGood;
  bad[14] ^= 1;
  CHECK(says(bad, "the program is damaged: weights, bytes 12 to 18, not as compiled ("));
  bad[3] ^= 1;
  CHECK(says(bad, "the program is damaged: instructions, bytes 0 to 11, not as compiled ("));
}

TEST(the_file_of_weights_is_checked) {
  const std::string path = check::scratch("with_data"), data = check::scratch("data");
  write(path, kGood);
  const auto found = ProgramChecksums::read(path);
  CHECK(found.ok() && *found);
  for (const auto& [bytes, is_good] : {std::pair("beside", true), {"besidf", false}, {"besid", false}}) {
    write(data, bytes);
    CHECK(((*found)->check_data(data) == Error::Ok) == is_good);
  }
}

TEST(programs_of_earlier_versions_have_none) {
  for (const char* bytes : {"x", "an earlier program, longer than a trailer"}) {
    CHECK(said(bytes) == "none");
  }
}

TEST(a_table_that_is_none_is_refused) {
  const char* tables[] = {
      "",
      "{}",
      "[[[[",
      "{\"parts\":[],\"data\":[]}",
      "{\"parts\":[{\"name\":\"a\",\"size\":1.0,\"crc32\":0}],\"data\":[]}",
      "{\"parts\":[{\"name\":\"a\",\"size\":-1,\"crc32\":0}],\"data\":[]}",
      "{\"parts\":[{\"name\":7,\"size\":1,\"crc32\":0}],\"data\":[]}",
      "{\"parts\":[{\"name\":\"a\",\"size\":1,\"crc32\":4294967296}],\"data\":[]}",
      "{\"parts\":[{\"name\":\"a\",\"size\":1,\"crc32\":0}]}",
  };
  for (const char* table : tables) {
    CHECK(says(with_trailer("x", table), "its table of checksums is not whole"));
  }
  std::string longer = kGood;
  std::memset(&longer[longer.size() - 16], 0x7f, 4);
  CHECK(says(longer, "its table of checksums is not whole"));
}
