// learn_corrections PROGRAM: a chat that learns what you correct. The program is compiled with --generate --context C.
//
// Each line of stdin is a prompt, token ids with spaces between; its answer is a line of stdout. A line that begins
// with
// `=` is the right answer to the prompt before it: the program trains on it, and answers that prompt again. A tokenizer
// is the application's; ids keep the example short.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "prge/generator.h"
#include "prge/trainer.h"

namespace {

using prge::Error;
using Ids = std::vector<uint32_t>;

// A correction is learnt when its loss is below this, or after so many steps.
constexpr double kLearnt = 0.1;
constexpr uint64_t kMaxSteps = 200;

Ids parse(const std::string& line) {
  std::istringstream words(line);
  Ids ids;
  for (uint32_t id; words >> id;) {
    ids.push_back(id);
  }
  return ids;
}

Error answer(prge::Generator& generator, const Ids& prompt) {
  prge::Limits limits;
  limits.max_tokens = 12;
  if (generator.eos_id()) {
    limits.ends = {*generator.eos_id()};
  }
  const auto answered = generator.answer(prompt, limits);
  if (answered.ok()) {
    for (const uint32_t id : answered->ids) {
      std::printf("%u ", id);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return answered.error();
}

// Trains on one answer: each of its tokens is predicted from the position before it.
Error learn(prge::Trainer& trainer, const Ids& prompt, const Ids& right) {
  Ids tokens = prompt;
  tokens.insert(tokens.end(), right.begin(), right.end() - 1);
  Ids positions;
  for (size_t k = 0; k < right.size(); ++k) {
    positions.push_back(static_cast<uint32_t>(prompt.size() - 1 + k));
  }
  prge::Row row;
  row.tokens = tokens.data();
  row.num_tokens = static_cast<uint32_t>(tokens.size());
  row.label_pos = positions.data();
  row.targets = right.data();
  row.num_labels = static_cast<uint32_t>(right.size());
  const std::vector<prge::Row> batch(trainer.shape().batch_size, row);
  for (uint64_t step = 0; step < kMaxSteps; ++step) {
    const auto result = trainer.step(batch);
    if (!result.ok()) {
      return result.error();
    }
    std::fprintf(stderr, "step %llu  loss %.4f\n", static_cast<unsigned long long>(result->step), result->loss);
    if (result->loss < kLearnt) {
      break;
    }
  }
  return Error::Ok;
}

Error chat(const std::string& program) {
  prge::Settings settings;
  settings.schedule = "constant"; // nobody knows how many corrections will come
  auto opened = prge::Trainer::open(program, settings);
  if (!opened.ok()) {
    return opened.error();
  }
  prge::Trainer& trainer = **opened;
  auto generator = prge::Generator::of(trainer); // the weights are in memory once
  if (!generator.ok()) {
    return generator.error();
  }
  Ids prompt;
  for (std::string line; std::getline(std::cin, line);) {
    const bool is_correction = !line.empty() && line.front() == '=';
    const Ids ids = parse(is_correction ? line.substr(1) : line);
    if (ids.empty() || (is_correction && prompt.empty())) {
      std::fprintf(stderr, "expected token ids, and a correction after a prompt\n");
      continue;
    }
    Error error = Error::Ok;
    if (is_correction) {
      error = learn(trainer, prompt, ids);
    } else {
      prompt = ids;
    }
    if (error == Error::Ok) {
      error = answer(**generator, prompt);
    }
    if (error != Error::Ok) {
      return error;
    }
  }
  return Error::Ok;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: learn_corrections PROGRAM < lines\n");
    return 2;
  }
  if (chat(argv[1]) != Error::Ok) {
    std::fprintf(stderr, "error: %s\n", prge::last_error());
    return 1;
  }
  return 0;
}
