// The journal of a run: prgec's docs/journal.md has the bytes, prgec/formats/journal.py is the twin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checksum.h"
#include "files.h"
#include "prge/error.h"

namespace prge {

// What a run is.
struct JournalHeader {
  std::string pack() const;

  uint32_t q = 0, batch_size = 0;
  int64_t seed = 0;
  uint64_t steps = 0;
  double lr = 0, eps = 0;
  std::string schedule, estimator;
  uint32_t num_examples = 0, rows_crc = 0;
  Digest program = {}, start = {};
  double max_g = 0;
  uint32_t policies = 0;
};

enum class RecordKind : uint32_t { Step = 1, Evaluation = 2, State = 3 };

// One record; which fields count follows from the kind.
struct Record {
  RecordKind kind = RecordKind::Step;
  uint64_t step = 0;
  double lr = 0, eps = 0;
  std::vector<double> losses; // [q][2], + before -
  std::vector<float> g; // [q]
  double loss = 0, accuracy = 0; // accuracy is NaN for an open-ended task
  uint64_t num_examples = 0;
  Digest state = {};
};

class JournalWriter {
 public:
  Error create(const std::string& path, const JournalHeader& header);
  // Goes on behind the first `good_bytes` bytes and cuts what follows.
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

// Reads good records one after the other, as often as wanted.
class JournalReader {
 public:
  static Result<std::unique_ptr<JournalReader>> open(const std::string& path);

  const JournalHeader& header() const {
    return header_;
  }
  void rewind();
  // False behind the last good record.
  bool next(Record& record);
  // Place behind the record `next` gave, and the length of the file.
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
