// One of the readers under libFuzzer, which is guided by the branches that an input takes.
//
//   PRGE_PROGRAM=tiny.pte PRGE_KIND=0 guided -runs=1000000 SEEDS
//
// Checksums of journals, rows and tables are put right again: no reader would get past them otherwise.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "checksum.h"
#include "journal.h"
#include "readers.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using prge::fuzz::Kind;

Kind kind;
std::unique_ptr<prge::fuzz::Readers> readers;

using prge::kJournalHeaderBytes;

constexpr size_t kJournalCheckedFrom = 16, kRowsCheckedFrom = 16, kCrcAt = 12;
constexpr size_t kTrailerBytes = 16;

uint32_t word(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

void put_crc(uint8_t* at, const uint8_t* data, size_t size) {
  const uint32_t crc = prge::crc32(data, size);
  std::memcpy(at, &crc, sizeof(crc));
}

void repair_journal(uint8_t* data, size_t size) {
  if (size < kJournalHeaderBytes) {
    return;
  }
  put_crc(data + kCrcAt, data + kJournalCheckedFrom, kJournalHeaderBytes - kJournalCheckedFrom);
  const uint32_t q = word(data + kJournalCheckedFrom);
  for (size_t place = kJournalHeaderBytes; place + prge::kJournalFrameBytes <= size;) {
    const uint64_t body = prge::Record::body_bytes(word(data + place + 4), q);
    const size_t end = std::min<uint64_t>(size - place, prge::kJournalFrameBytes + body) + place;
    put_crc(data + place, data + place + 4, end - place - 4);
    place = end;
  }
}

void repair(uint8_t* data, size_t size) {
  if (kind == Kind::Journal) {
    repair_journal(data, size);
  } else if (const uint64_t length = size; kind == Kind::Rows && size >= kRowsCheckedFrom + sizeof(length)) {
    std::memcpy(data + kRowsCheckedFrom, &length, sizeof(length));
    put_crc(data + kCrcAt, data + kRowsCheckedFrom, size - kRowsCheckedFrom);
  } else if (kind == Kind::Program && size > kTrailerBytes) {
    const size_t table_end = size - kTrailerBytes, table = word(data + table_end);
    if (table <= table_end) {
      put_crc(data + table_end + 4, data + table_end - table, table);
    }
  }
}

} // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char *program = std::getenv("PRGE_PROGRAM"), *number = std::getenv("PRGE_KIND");
  if (!program || !number) {
    std::fprintf(stderr, "error: PRGE_PROGRAM must be a .pte, and PRGE_KIND the number of a kind of file\n");
    std::exit(1);
  }
  kind = static_cast<Kind>(std::atoi(number));
  readers = std::make_unique<prge::fuzz::Readers>(program);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  // Some stay wrong: a reader must refuse them, too.
  if (seed % 8 != 0) {
    repair(data, size);
  }
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  readers->read(kind, data, size);
  return 0;
}
