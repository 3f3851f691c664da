#include "journal.h"

#include <fcntl.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "fail.h"

namespace prge {

namespace {

constexpr uint64_t kHeaderBytes = 176;
constexpr uint64_t kCheckedFrom = 16;
constexpr uint64_t kFrameBytes = 8;
constexpr uint32_t kVersion = 2;
constexpr uint32_t kMaxQueries = 1 << 16;
constexpr size_t kNameBytes = 16;
constexpr int64_t kSyncMs = 1000;

template <typename T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T get(const uint8_t*& from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  from += sizeof(value);
  return value;
}

std::string get_name(const uint8_t*& from) {
  const char* text = reinterpret_cast<const char*>(from);
  from += kNameBytes;
  return std::string(text, strnlen(text, kNameBytes));
}

int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// Bytes of a record behind its frame; 0 for a kind nobody knows.
uint64_t body_bytes(uint32_t kind, uint64_t q) {
  switch (static_cast<RecordKind>(kind)) {
    case RecordKind::Step:
      return 24 + 20 * q;
    case RecordKind::Evaluation:
      return 32;
    case RecordKind::State:
      return 40;
  }
  return 0;
}

void unpack(const uint8_t* body, uint32_t q, Record& out) {
  out.step = get<uint64_t>(body);
  if (out.kind == RecordKind::Step) {
    out.lr = get<double>(body);
    out.eps = get<double>(body);
    out.losses.resize(size_t{2} * q);
    out.g.resize(q);
    std::memcpy(out.losses.data(), body, size_t{16} * q);
    std::memcpy(out.g.data(), body + size_t{16} * q, size_t{4} * q);
  } else if (out.kind == RecordKind::Evaluation) {
    out.loss = get<double>(body);
    out.accuracy = get<double>(body);
    out.num_examples = get<uint64_t>(body);
  } else {
    out.state = get<Digest>(body);
  }
}

// Drivers record no step with other numbers; applying one would ruin every weight.
bool is_applicable(const Record& record) {
  bool is_finite = std::isfinite(record.lr);
  for (const float g : record.g) {
    is_finite = is_finite && std::isfinite(g);
  }
  return record.kind != RecordKind::Step || is_finite;
}

} // namespace

std::string JournalHeader::pack() const {
  std::string checked;
  put(checked, q);
  put(checked, batch_size);
  put(checked, seed);
  put(checked, steps);
  put(checked, lr);
  put(checked, eps);
  for (std::string name : {schedule, estimator}) {
    name.resize(kNameBytes, '\0');
    checked += name;
  }
  put(checked, num_examples);
  put(checked, rows_crc);
  put(checked, program);
  put(checked, start);
  put(checked, max_g);
  put(checked, policies);
  put(checked, uint32_t{0});
  std::string out = "PRGEJRNL";
  put(out, kVersion);
  put(out, crc32(checked.data(), checked.size()));
  return out + checked;
}

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
  buffer_.clear();
  put(buffer_, uint32_t{0});
  put(buffer_, record.kind);
  put(buffer_, record.step);
  if (record.kind == RecordKind::Step) {
    put(buffer_, record.lr);
    put(buffer_, record.eps);
    buffer_.append(reinterpret_cast<const char*>(record.losses.data()), record.losses.size() * sizeof(double));
    buffer_.append(reinterpret_cast<const char*>(record.g.data()), record.g.size() * sizeof(float));
  } else if (record.kind == RecordKind::Evaluation) {
    put(buffer_, record.loss);
    put(buffer_, record.accuracy);
    put(buffer_, record.num_examples);
  } else {
    put(buffer_, record.state);
  }
  const uint32_t crc = crc32(buffer_.data() + 4, buffer_.size() - 4);
  std::memcpy(&buffer_[0], &crc, sizeof(crc));
  PRGE_TRY(file_.write(buffer_.data(), buffer_.size()));
  return record.kind == RecordKind::State || now_ms() - last_sync_ms_ >= kSyncMs ? sync() : Error::Ok;
}

Error JournalWriter::sync() {
  last_sync_ms_ = now_ms();
  return file_.sync();
}

Result<std::unique_ptr<JournalReader>> JournalReader::open(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file.ok()) {
    return file.error();
  }
  std::unique_ptr<JournalReader> reader(new JournalReader());
  reader->file_ = std::move(*file);
  const uint8_t* data = reader->file_->data();
  if (reader->size() < kHeaderBytes || std::memcmp(data, "PRGEJRNL", 8) != 0) {
    return fail(Error::InvalidExternalData, "not a journal (%s)", path.c_str());
  }
  const uint8_t* at = data + 8;
  JournalHeader& h = reader->header_;
  const uint32_t version = get<uint32_t>(at), crc = get<uint32_t>(at);
  if (version != kVersion) {
    return fail(Error::InvalidExternalData, "the journal has version %u, not %u (%s)", version, kVersion, path.c_str());
  }
  h.q = get<uint32_t>(at);
  if (crc32(data + kCheckedFrom, kHeaderBytes - kCheckedFrom) != crc || h.q < 1 || h.q > kMaxQueries) {
    return fail(Error::InvalidExternalData, "the journal's header is damaged (%s)", path.c_str());
  }
  h.batch_size = get<uint32_t>(at);
  h.seed = get<int64_t>(at);
  h.steps = get<uint64_t>(at);
  h.lr = get<double>(at);
  h.eps = get<double>(at);
  h.schedule = get_name(at);
  h.estimator = get_name(at);
  h.num_examples = get<uint32_t>(at);
  h.rows_crc = get<uint32_t>(at);
  h.program = get<Digest>(at);
  h.start = get<Digest>(at);
  h.max_g = get<double>(at);
  h.policies = get<uint32_t>(at);
  reader->rewind();
  return reader;
}

void JournalReader::rewind() {
  place_ = kHeaderBytes;
  last_step_ = 0;
}

bool JournalReader::next(Record& record) {
  if (place_ + kFrameBytes > size()) {
    return false;
  }
  const uint8_t* frame = file_->data() + place_;
  const uint8_t* at = frame;
  const uint32_t crc = get<uint32_t>(at), kind = get<uint32_t>(at);
  const uint64_t body = body_bytes(kind, header_.q);
  if (body == 0 || body > size() - place_ - kFrameBytes || crc32(frame + 4, body + 4) != crc) {
    return false;
  }
  record.kind = static_cast<RecordKind>(kind);
  unpack(at, header_.q, record);
  const uint64_t expected = last_step_ + (record.kind == RecordKind::Step ? 1 : 0);
  // What a run that stopped early leaves behind is evaluated last: an earlier state, the best one.
  const bool is_placed = record.kind == RecordKind::Evaluation ? record.step <= last_step_ : record.step == expected;
  if (!is_placed || !is_applicable(record)) {
    return false;
  }
  last_step_ = expected;
  place_ += kFrameBytes + body;
  return true;
}

} // namespace prge
