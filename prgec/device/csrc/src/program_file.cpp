#include "program_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "fail.h"

namespace prge {

namespace {

constexpr size_t kSampleBytes = size_t{1} << 20;

} // namespace

// The runtime maps the file: a missing tail would be a bus error in the middle of training.
Error check_envelope(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file.ok()) {
    return file.error();
  }
  const uint8_t* data = (*file)->data();
  const size_t size = (*file)->size();
  if (size < 40 || std::memcmp(data + 4, "ET", 2) != 0) {
    return fail(Error::InvalidProgram, "not an ExecuTorch program (%s)", path.c_str());
  }
  if (std::memcmp(data + 8, "eh", 2) != 0) {
    return Error::Ok;
  }
  uint32_t header_bytes;
  uint64_t program_bytes, segments_at, segment_bytes = 0;
  std::memcpy(&header_bytes, data + 12, 4);
  std::memcpy(&program_bytes, data + 16, 8);
  std::memcpy(&segments_at, data + 24, 8);
  if (header_bytes >= 32) { // shorter headers predate the field
    std::memcpy(&segment_bytes, data + 32, 8);
  }
  const bool is_whole = program_bytes <= size && segments_at <= size && segment_bytes <= size - segments_at;
  return is_whole ? Error::Ok : fail(Error::InvalidProgram, "the program is cut short (%s)", path.c_str());
}

Digest fingerprint(const MappedFile& file) {
  const size_t sample = std::min(file.size(), kSampleBytes);
  const std::string digits = std::to_string(file.size());
  return Sha256()
      .update(digits.data(), digits.size())
      .update(file.data(), sample)
      .update(file.data() + file.size() - sample, sample)
      .finish();
}

Result<std::string> find_data(const std::string& path, const std::string& sha256) {
  const std::string data_path = path.substr(0, path.rfind('.')) + ".ptd";
  auto file = MappedFile::open(data_path);
  if (!file.ok()) {
    return fail(
        Error::InvalidProgram, "the program's weights are missing: expected %s (%s). Hint: copy both files",
        data_path.c_str(), path.c_str());
  }
  if (fingerprint(**file).hex() != sha256) {
    return fail(
        Error::InvalidProgram,
        "%s belongs to another program (%s). Hint: copy the .pte and the .ptd of one compilation together",
        data_path.substr(data_path.rfind('/') + 1).c_str(), path.c_str());
  }
  return data_path;
}

} // namespace prge
