// Answers to several prompts, side by side where a program can; prgec/runtime/training/writing.py, token for token.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "prge/error.h"
#include "program.h"
#include "reader.h"
#include "sampler.h"

namespace prge {

// A prompt and its answer so far.
struct OpenText {
  const std::vector<uint32_t>* prompt;
  Sampler sampler;
  std::vector<uint32_t> ids; // with the one that ends it
};

class AnswerWriter {
 public:
  // Reads everything again, since weights may have changed.
  AnswerWriter(Program& program, uint32_t max_tokens, std::vector<uint32_t> ends);

  // Writes the answer of every text; texts with one prompt follow each other, so that it is read once.
  Error write(std::vector<OpenText>& texts);

 private:
  // Places waiting texts in free rows, and takes their first tokens.
  Error enter(std::vector<OpenText>& texts);
  // Reads the last token of every open text, and takes the next ones.
  Error decode(std::vector<OpenText>& texts);
  void take(OpenText& text, const float* logits);
  bool is_whole(const OpenText& text) const;

  Program& program_;
  Reader reader_;
  uint32_t max_tokens_;
  std::vector<uint32_t> ends_;
  size_t next_ = 0; // text that waits first
  std::deque<size_t> free_; // rows
  std::map<size_t, size_t> open_; // texts by row
  const std::vector<uint32_t>* last_prompt_ = nullptr;
  std::vector<float> last_logits_; // after it
};

} // namespace prge
