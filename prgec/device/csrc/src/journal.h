// The records of a journal: prgec's docs/journal.md has the bytes, prgec/core/formats/journal_records.py is the twin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checksum.h"
#include "prge/error.h"

namespace prge {

// A header as bytes.
constexpr uint64_t kJournalHeaderBytes = 176;
// Checksum and kind before a record's body.
constexpr uint64_t kJournalFrameBytes = 8;

// The identity of a run.
struct JournalHeader {
  std::string pack() const;
  // From kJournalHeaderBytes bytes; an error where they are none.
  static Result<JournalHeader> unpack(const uint8_t* data, const std::string& path);

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
  // Replaces `out` by frame and body.
  void pack(std::string& out) const;
  // Bytes of a body; 0 for a kind nobody knows.
  static uint64_t body_bytes(uint32_t kind, uint64_t q);
  // From the body of a record of that kind.
  void unpack(RecordKind from_kind, const uint8_t* body, uint32_t q);

  RecordKind kind = RecordKind::Step;
  uint64_t step = 0;
  double lr = 0, eps = 0;
  std::vector<double> losses; // [q][2], + before -
  std::vector<float> g; // [q]
  double loss = 0, accuracy = 0; // accuracy is NaN for an open-ended task
  uint64_t num_examples = 0;
  Digest state = {};
};

} // namespace prge
