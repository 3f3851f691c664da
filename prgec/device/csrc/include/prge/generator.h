// Answers with a program made by `prgec compile --generate --context C`, and with the weights trained into it.
//
//   auto opened = prge::Generator::open("model.pte");
//   if (!opened.ok()) return log(prge::last_error());
//   prge::Generator& generator = **opened;
//   generator.load_adapter("run/adapter.safetensors");
//   auto answer = generator.answer(prompt, {}, [](uint32_t token) { return show(token); });
//   if (answer.ok() && answer->end == prge::End::Full) ... // tokens so far: answer->ids
//
// Texts are token ids: tokenizers are the application's. A prompt is the whole text so far. Its longest prefix that was
// read before is still in the cache and is not read again, so that a conversation costs only its new tokens.
//
// A Generator is not thread-safe; different ones are independent. Nothing throws.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "prge/error.h"

namespace prge {

class Trainer;

// How tokens are drawn: with the same numbers the tokens of prgec's Python driver, draw for draw.
struct Sampling {
  double temperature = 0; // divides the logits; 0 takes the most likely token always
  uint32_t top_k = 0; // draw among this many most likely tokens, 0 for all
  double top_p = 1; // draw among the fewest tokens whose probabilities add up to this
  uint64_t seed = 0;
};

// How a program is opened.
struct Opening {
  bool verify = true; // compare the program with its checksums before any of it runs
  std::string packed_weights; // folder for XNNPACK's packed weights, which are mapped; empty to keep them in memory
  void (*warn)(const char* line) = nullptr; // receives warnings
};

// How far an answer goes.
struct Limits {
  uint32_t max_tokens = 128;
  std::vector<uint32_t> ends; // tokens that end it, themselves left out
};

// Why an answer ended.
enum class End {
  Token, // one of `ends` came
  Length, // it has max_tokens
  Full, // the cache holds no more
  Stopped, // the callback returned false
};

struct Answer {
  std::vector<uint32_t> ids;
  End end = End::Length;
};

class Generator {
 public:
  // Receives each token as it comes; false ends the answer after it.
  using OnToken = std::function<bool(uint32_t token)>;

  // Maps the program. One without a cache is refused.
  static Result<std::unique_ptr<Generator>> open(const std::string& program_path, const Opening& opening = {});
  // Answers with a trainer's own program and its present weights, in the middle of a run too: the weights are in memory
  // once. The trainer outlives it and rests while it answers; the run is not affected.
  static Result<std::unique_ptr<Generator>> of(Trainer& trainer);
  ~Generator();

  uint32_t context() const; // tokens a prompt and its answer may have
  uint32_t vocab_size() const;
  // The token that ends a text, where the program's tokenizer has one.
  std::optional<uint32_t> eos_id() const;

  // Puts an adapter of this program's base model into it: milliseconds. The next answer reads its whole prompt again.
  // Where a trainer has the program, as Trainer::load_adapter.
  Error load_adapter(const std::string& path);
  // Draws from here on, with the first draw of the seed; until then the most likely token is taken.
  Error sample(const Sampling& sampling);
  // Continues a text. An empty prompt, an id the vocabulary lacks and a prompt longer than the context are
  // refused.
  Result<Answer> answer(
      const std::vector<uint32_t>& prompt, const Limits& limits = {}, const OnToken& on_token = nullptr);

 private:
  class Impl;
  explicit Generator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace prge
