#include "journal_writer.h"

#include <fcntl.h>

#include <chrono>

#include "fail.h"

namespace prge {

namespace {

constexpr int64_t kSyncMs = 1000;

int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

} // namespace

Error JournalWriter::create(const std::string& path, const JournalHeader& header) {
  // A journal without a whole header never exists.
  const std::string bytes = header.pack();
  AtomicFile file(path);
  PRGE_TRY(file.open());
  PRGE_TRY(file.write(bytes.data(), bytes.size()));
  PRGE_TRY(file.commit());
  return append_to(path, bytes.size());
}

Error JournalWriter::append_to(const std::string& path, uint64_t good_bytes) {
  PRGE_TRY(file_.open(path, O_WRONLY));
  PRGE_TRY(file_.truncate(good_bytes));
  return sync();
}

Error JournalWriter::write(const Record& record) {
  record.pack(buffer_);
  PRGE_TRY(file_.write(buffer_.data(), buffer_.size()));
  return record.kind == RecordKind::State || now_ms() - last_sync_ms_ >= kSyncMs ? sync() : Error::Ok;
}

Error JournalWriter::sync() {
  last_sync_ms_ = now_ms();
  return file_.sync();
}

} // namespace prge
