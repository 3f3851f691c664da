// Appends records to the journal of a run.
#pragma once

#include <cstdint>
#include <string>

#include "files.h"
#include "journal.h"
#include "prge/error.h"

namespace prge {

class JournalWriter {
 public:
  Error create(const std::string& path, const JournalHeader& header);
  // Appends after the first `good_bytes` bytes and cuts the rest.
  Error append_to(const std::string& path, uint64_t good_bytes);
  bool is_open() const {
    return file_.is_open();
  }
  // Hands the record to the system; on the disk within a second while steps go on, and at once for a state.
  Error write(const Record& record);
  Error sync();
  void close() {
    file_.close();
  }

 private:
  File file_;
  std::string buffer_;
  int64_t last_sync_ms_ = 0;
};

} // namespace prge
