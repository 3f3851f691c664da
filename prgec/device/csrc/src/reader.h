// Reads texts with a program's cache: the longest prefix that two texts have in common is read once.
#pragma once

#include <cstdint>
#include <vector>

#include "prge/error.h"
#include "program.h"

namespace prge {

class Reader {
 public:
  explicit Reader(Program& program) : program_(&program) {}

  // Refuses an empty text, an id that the vocabulary lacks, and a text longer than the context.
  Error check(const std::vector<uint32_t>& text) const;
  // Returns the logits after a text: f32[vocab_size], valid until the program's next call.
  Result<const float*> read(const std::vector<uint32_t>& text);
  // Reads everything again: the trained weights have changed.
  void forget() {
    program_->held().clear();
  }

 private:
  Program* program_; // which knows what it holds: several readers may share it
};

// Refuses logits that are not finite.
Error check_finite(const float* logits, int64_t vocab_size);

} // namespace prge
