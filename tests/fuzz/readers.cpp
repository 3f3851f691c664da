#include "readers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "adapter.h"
#include "fail.h"
#include "journal_reader.h"
#include "manifest.h"
#include "prge/rows.h"
#include "program_checksums.h"
#include "program_file.h"
#include "tokenizer_settings.h"

namespace prge::fuzz {

namespace {

// Keeps the compiler from dropping reads whose values nobody needs.
volatile uint64_t sink;

bool read_journal(const std::string& path) {
  auto reader = JournalReader::open(path);
  if (!reader.ok()) {
    return false;
  }
  uint64_t num_records = 0;
  for (Record record; (*reader)->next(record);) {
    num_records += record.g.size() + record.losses.size();
  }
  sink = num_records;
  return (*reader)->place() <= (*reader)->size();
}

bool read_rows(const std::string& path) {
  auto rows = Rows::open(path);
  if (!rows.ok()) {
    return false;
  }
  uint64_t sum = (*rows)->fingerprint();
  for (uint32_t example = 0; example < (*rows)->num_examples(); ++example) {
    for (uint32_t candidate = 0; candidate < (*rows)->num_candidates(); ++candidate) {
      const Row row = (*rows)->row(example, candidate);
      for (uint32_t i = 0; i < row.num_labels; ++i) {
        sum += row.tokens[row.label_pos[i]] + row.targets[i];
      }
    }
  }
  Order order((*rows)->num_examples(), 2, 1);
  for (uint64_t step = 1; step < 4; ++step) {
    sum += order.step(step)[0];
  }
  sink = sum;
  return true;
}

bool read_program(const std::string& path) {
  auto sums = ProgramChecksums::read(path);
  return sums.ok() && (!sums->has_value() || (*sums)->check(path) == Error::Ok);
}

} // namespace

Readers::Readers(const std::string& program) : file_(::memfd_create("input", 0)) {
  auto opened = Program::open(program);
  if (!opened.ok()) {
    std::fprintf(stderr, "error: %s\n", last_error());
    std::exit(1);
  }
  program_ = std::move(*opened);
}

bool Readers::read(Kind kind, const uint8_t* data, size_t size) {
  if (kind == Kind::Manifest) {
    const auto manifest = Manifest::parse(std::string(reinterpret_cast<const char*>(data), size));
    return manifest.ok() && !manifest->adapter_metadata(true).empty();
  }
  if (kind == Kind::Tokenizer) {
    return find_eos_id(data, size).has_value();
  }
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, data, size, 0) != static_cast<ssize_t>(size)) {
    std::abort();
  }
  const std::string path = "/proc/self/fd/" + std::to_string(file_);
  switch (kind) {
    case Kind::Journal:
      return read_journal(path);
    case Kind::Rows:
      return read_rows(path);
    case Kind::Adapter:
      return load_adapter(path, *program_) == Error::Ok;
    case Kind::Envelope:
      return check_envelope(path) == Error::Ok;
    default:
      return read_program(path);
  }
}

} // namespace prge::fuzz
