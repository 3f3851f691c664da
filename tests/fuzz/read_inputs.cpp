// Gives every input on stdin to one of the readers, and answers with one byte: whether it was accepted.
//
//   read_inputs PROGRAM, with PROGRAM a .pte that adapters are loaded into
//
// An input is a u32 kind, a u32 length, and that many bytes. A sanitiser's finding ends the process.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "adapter.h"
#include "fail.h"
#include "journal_reader.h"
#include "manifest.h"
#include "prge/rows.h"
#include "program.h"

namespace {

enum Kind : uint32_t { Journal, Rows, Adapter, Manifest };

bool read_journal(const std::string& path) {
  auto reader = prge::JournalReader::open(path);
  if (!reader.ok()) {
    return false;
  }
  uint64_t num_records = 0;
  for (prge::Record record; (*reader)->next(record);) {
    num_records += record.g.size() + record.losses.size();
  }
  return (*reader)->place() <= (*reader)->size();
}

bool read_rows(const std::string& path) {
  auto rows = prge::Rows::open(path);
  if (!rows.ok()) {
    return false;
  }
  uint64_t sum = (*rows)->fingerprint();
  for (uint32_t example = 0; example < (*rows)->num_examples(); ++example) {
    for (uint32_t candidate = 0; candidate < (*rows)->num_candidates(); ++candidate) {
      const prge::Row row = (*rows)->row(example, candidate);
      for (uint32_t i = 0; i < row.num_labels; ++i) {
        sum += row.tokens[row.label_pos[i]] + row.targets[i];
      }
    }
  }
  prge::Order order((*rows)->num_examples(), 2, 1);
  for (uint64_t step = 1; step < 4; ++step) {
    sum += order.step(step)[0];
  }
  static volatile uint64_t sink;
  sink = sum;
  return true;
}

bool read(uint32_t kind, const std::string& data, int file, prge::Program& program) {
  if (kind == Manifest) {
    const auto manifest = prge::Manifest::parse(data);
    return manifest.ok() && !manifest->adapter_metadata(true).empty();
  }
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, data.data(), data.size(), 0) != static_cast<ssize_t>(data.size())) {
    std::abort();
  }
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  return kind == Journal ? read_journal(path)
      : kind == Rows     ? read_rows(path)
                         : prge::load_adapter(path, program) == prge::Error::Ok;
}

} // namespace

int main(int argc, char** argv) {
  auto program = prge::Program::open(argc > 1 ? argv[1] : "");
  if (!program.ok()) {
    std::fprintf(stderr, "error: %s\n", prge::last_error());
    return 1;
  }
  const int file = ::memfd_create("input", 0);
  uint32_t head[2];
  while (std::fread(head, sizeof(head), 1, stdin) == 1) {
    std::string data(head[1], '\0');
    if (std::fread(&data[0], 1, data.size(), stdin) != data.size()) {
      return 1;
    }
    std::putchar(read(head[0], data, file, **program) ? 1 : 0);
    std::fflush(stdout);
  }
  return 0;
}
