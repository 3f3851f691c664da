#include "journal_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "fail.h"

namespace prge {

namespace {

uint32_t word(const uint8_t* data) {
  uint32_t value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

// Drivers record no step with other numbers; applying one would ruin every weight. A step that perturbed nothing has a
// norm there, which nobody applies.
bool is_applicable(const Record& record) {
  const auto is_finite = [](float value) { return std::isfinite(value); };
  return record.kind != RecordKind::Step ||
      (std::isfinite(record.lr) && (record.eps == 0 || std::all_of(record.g.begin(), record.g.end(), is_finite)));
}

} // namespace

Result<std::unique_ptr<JournalReader>> JournalReader::open(const std::string& path) {
  auto file = MappedFile::open(path);
  PRGE_TRY(file.error());
  if ((*file)->size() < kJournalHeaderBytes) {
    return fail(Error::InvalidExternalData, "not a journal (%s)", path.c_str());
  }
  auto header = JournalHeader::unpack((*file)->data(), path);
  PRGE_TRY(header.error());
  std::unique_ptr<JournalReader> reader(new JournalReader());
  reader->file_ = std::move(*file);
  reader->header_ = std::move(*header);
  reader->rewind();
  return reader;
}

void JournalReader::rewind() {
  place_ = kJournalHeaderBytes;
  last_step_ = 0;
}

bool JournalReader::next(Record& record) {
  if (place_ + kJournalFrameBytes > size()) {
    return false;
  }
  const uint8_t* frame = file_->data() + place_;
  const uint32_t crc = word(frame), kind = word(frame + 4);
  const uint64_t body = Record::body_bytes(kind, header_.q);
  if (body == 0 || body > size() - place_ - kJournalFrameBytes || crc32(frame + 4, body + 4) != crc) {
    return false;
  }
  record.unpack(static_cast<RecordKind>(kind), frame + kJournalFrameBytes, header_.q);
  const uint64_t expected = last_step_ + (record.kind == RecordKind::Step ? 1 : 0);
  // A run that stopped early evaluates last the state that it leaves: an earlier one, the best.
  const bool is_placed = record.kind == RecordKind::Evaluation ? record.step <= last_step_ : record.step == expected;
  if (!is_placed || !is_applicable(record)) {
    return false;
  }
  last_step_ = expected;
  place_ += kJournalFrameBytes + body;
  return true;
}

} // namespace prge
