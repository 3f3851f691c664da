// Reads the journal of a run, whose tail may be damaged.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "files.h"
#include "journal.h"
#include "prge/error.h"

namespace prge {

// Reads good records one after the other, as often as wanted.
class JournalReader {
 public:
  static Result<std::unique_ptr<JournalReader>> open(const std::string& path);

  const JournalHeader& header() const {
    return header_;
  }
  void rewind();
  // False after the last good record.
  bool next(Record& record);
  // End of the record that `next` gave, and the length of the file.
  uint64_t place() const {
    return place_;
  }
  uint64_t size() const {
    return file_->size();
  }

 private:
  std::unique_ptr<MappedFile> file_;
  JournalHeader header_;
  uint64_t place_ = 0;
  uint64_t last_step_ = 0;
};

} // namespace prge
