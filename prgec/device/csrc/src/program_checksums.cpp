#include "program_checksums.h"

#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "checksum.h"
#include "fail.h"
#include "files.h"
#include "json.h"

namespace prge {

namespace {

// The end of a file with a table: bytes of the table, their CRC-32, letters to find it by.
struct Trailer {
  uint32_t size, crc;
  char magic[8];
};
static_assert(sizeof(Trailer) == 16);
constexpr char kMagic[] = "PRGESUMS";

} // namespace

Result<std::optional<ProgramChecksums>> ProgramChecksums::read(const std::string& path) {
  auto file = MappedFile::open(path);
  PRGE_TRY(file.error());
  const uint64_t size = (*file)->size();
  Trailer trailer;
  if (size < sizeof(trailer)) {
    return std::optional<ProgramChecksums>();
  }
  const uint64_t table_end = size - sizeof(trailer);
  std::memcpy(&trailer, (*file)->data() + table_end, sizeof(trailer));
  if (std::memcmp(trailer.magic, kMagic, sizeof(trailer.magic)) != 0) {
    return std::optional<ProgramChecksums>();
  }
  ProgramChecksums out;
  if (trailer.size > table_end || !out.parse((*file)->data() + table_end - trailer.size, trailer.size, trailer.crc) ||
      out.size() != table_end - trailer.size) {
    return fail(
        Error::InvalidProgram, "the program is damaged: its table of checksums is not whole (%s)", path.c_str());
  }
  return std::optional<ProgramChecksums>(std::move(out));
}

bool ProgramChecksums::parse(const uint8_t* table, size_t size, uint32_t crc) {
  Json json;
  if (crc32(table, size) != crc || !Json::parse(std::string_view(reinterpret_cast<const char*>(table), size), json)) {
    return false;
  }
  for (const auto& [key, parts] : {std::pair<const char*, Parts*>{"parts", &parts_}, {"data", &data_}}) {
    if (json[key].kind != Json::Kind::Array) {
      return false;
    }
    for (const Json& item : json[key].items) {
      Part part;
      part.name = item["name"].text;
      if (!item["name"].is_string() || !item["size"].integer(1, int64_t{1} << 31, part.size) ||
          !item["crc32"].integer(0, std::numeric_limits<uint32_t>::max(), part.crc32)) {
        return false;
      }
      parts->push_back(std::move(part));
    }
  }
  return true;
}

uint64_t ProgramChecksums::size() const {
  uint64_t total = 0;
  for (const Part& part : parts_) {
    total += static_cast<uint64_t>(part.size);
  }
  return total;
}

Error ProgramChecksums::check(const std::string& path, const Parts& parts) {
  auto file = MappedFile::open(path);
  PRGE_TRY(file.error());
  uint64_t start = 0;
  for (const Part& part : parts) {
    const uint64_t end = start + static_cast<uint64_t>(part.size);
    const bool is_good =
        end <= (*file)->size() && crc32((*file)->data() + start, static_cast<size_t>(part.size)) == part.crc32;
    if (!is_good) {
      return fail(
          Error::InvalidProgram,
          "the program is damaged: %s, bytes %llu to %llu, not as compiled (%s). Hint: copy or compile it again",
          part.name.c_str(), static_cast<unsigned long long>(start), static_cast<unsigned long long>(end - 1),
          path.c_str());
    }
    start = end;
  }
  return Error::Ok;
}

} // namespace prge
