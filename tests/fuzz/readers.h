// The readers of the C++ driver for files that strangers may have made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "program.h"

namespace prge::fuzz {

// As tests/checks/fuzz_readers.py numbers them.
enum class Kind : uint32_t { Journal, Rows, Adapter, Manifest, Tokenizer, Envelope, Program };

// Reads inputs of any kind. Files are in memory.
class Readers {
 public:
  // A .pte that adapters are loaded into.
  explicit Readers(const std::string& program);

  // Whether the input is accepted.
  bool read(Kind kind, const uint8_t* data, size_t size);

 private:
  std::unique_ptr<prge::Program> program_;
  int file_;
};

} // namespace prge::fuzz
