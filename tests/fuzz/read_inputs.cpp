// Gives every input on stdin to one of the readers, and answers with one byte: whether it was accepted.
//
//   read_inputs PROGRAM, with PROGRAM a .pte that adapters are loaded into
//
// An input is a u32 kind, a u32 length, and that many bytes. A sanitiser's finding ends the process.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "readers.h"

int main(int argc, char** argv) {
  prge::fuzz::Readers readers(argc > 1 ? argv[1] : "");
  uint32_t head[2];
  while (std::fread(head, sizeof(head), 1, stdin) == 1) {
    std::vector<uint8_t> data(head[1]);
    if (std::fread(data.data(), 1, data.size(), stdin) != data.size()) {
      return 1;
    }
    std::putchar(readers.read(static_cast<prge::fuzz::Kind>(head[0]), data.data(), data.size()) ? 1 : 0);
    std::fflush(stdout);
  }
  return 0;
}
