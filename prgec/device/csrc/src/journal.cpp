#include "journal.h"

#include <cstring>

#include "fail.h"

namespace prge {

namespace {

constexpr char kMagic[] = "PRGEJRNL";
constexpr uint64_t kCheckedFrom = 16;
constexpr uint32_t kVersion = 2;
constexpr uint32_t kMaxQueries = 1 << 16;
constexpr size_t kNameBytes = 16;

template <typename T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
void put_all(std::string& out, const std::vector<T>& values) {
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
T get(const uint8_t*& from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  from += sizeof(value);
  return value;
}

template <typename T>
void get_all(const uint8_t*& from, size_t count, std::vector<T>& out) {
  out.resize(count);
  std::memcpy(out.data(), from, count * sizeof(T));
  from += count * sizeof(T);
}

std::string get_name(const uint8_t*& from) {
  const char* text = reinterpret_cast<const char*>(from);
  from += kNameBytes;
  return std::string(text, strnlen(text, kNameBytes));
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
  std::string out = kMagic;
  put(out, kVersion);
  put(out, crc32(checked.data(), checked.size()));
  return out + checked;
}

Result<JournalHeader> JournalHeader::unpack(const uint8_t* data, const std::string& path) {
  const uint8_t* at = data + 8;
  JournalHeader h;
  const uint32_t version = get<uint32_t>(at), crc = get<uint32_t>(at);
  if (std::memcmp(data, kMagic, 8) != 0) {
    return fail(Error::InvalidExternalData, "not a journal (%s)", path.c_str());
  }
  if (version != kVersion) {
    return fail(Error::InvalidExternalData, "the journal has version %u, not %u (%s)", version, kVersion, path.c_str());
  }
  h.q = get<uint32_t>(at);
  if (crc32(data + kCheckedFrom, kJournalHeaderBytes - kCheckedFrom) != crc || h.q < 1 || h.q > kMaxQueries) {
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
  return h;
}

uint64_t Record::body_bytes(uint32_t kind, uint64_t q) {
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

void Record::pack(std::string& out) const {
  out.clear();
  put(out, uint32_t{0});
  put(out, kind);
  put(out, step);
  if (kind == RecordKind::Step) {
    put(out, lr);
    put(out, eps);
    put_all(out, losses);
    put_all(out, g);
  } else if (kind == RecordKind::Evaluation) {
    put(out, loss);
    put(out, accuracy);
    put(out, num_examples);
  } else {
    put(out, state);
  }
  const uint32_t crc = crc32(out.data() + sizeof(crc), out.size() - sizeof(crc));
  std::memcpy(&out[0], &crc, sizeof(crc));
}

void Record::unpack(RecordKind from_kind, const uint8_t* body, uint32_t q) {
  kind = from_kind;
  step = get<uint64_t>(body);
  if (kind == RecordKind::Step) {
    lr = get<double>(body);
    eps = get<double>(body);
    get_all(body, size_t{2} * q, losses);
    get_all(body, q, g);
  } else if (kind == RecordKind::Evaluation) {
    loss = get<double>(body);
    accuracy = get<double>(body);
    num_examples = get<uint64_t>(body);
  } else {
    state = get<Digest>(body);
  }
}

} // namespace prge
