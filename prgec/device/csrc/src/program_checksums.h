// The table of checksums after a .pte (prgec's docs/contract.md): which bytes a driver may run, part by part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "prge/error.h"

namespace prge {

class ProgramChecksums {
 public:
  // Reads the table of the program at `path`; nothing where it has none, as programs of earlier versions. An error
  // where the table is damaged or the file does not have the recorded length.
  static Result<std::optional<ProgramChecksums>> read(const std::string& path);

  // Compares the program with the table; an error names the first part that differs.
  Error check(const std::string& path) const {
    return check(path, parts_);
  }
  // The same of the file of weights beside it.
  Error check_data(const std::string& path) const {
    return check(path, data_);
  }

 private:
  struct Part {
    std::string name;
    int64_t size, crc32;
  };
  using Parts = std::vector<Part>;

  bool parse(const uint8_t* table, size_t size, uint32_t crc);
  static Error check(const std::string& path, const Parts& parts);
  uint64_t size() const;

  Parts parts_, data_;
};

} // namespace prge
