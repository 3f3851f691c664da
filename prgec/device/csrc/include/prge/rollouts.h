// Training by rewards: the program writes answers, your function says how good each one is, and a step makes good ones
// likelier. The program is one of `prgec compile --label-weights --generate --context C`; with `--rollouts R` it writes
// R answers at once.
//
//   auto opened = prge::Trainer::open("model.pte", settings);
//   auto rollouts = prge::Rollouts::of(**opened, {});
//   const auto step = (*rollouts)->step(prompts, [](const prge::Written& answer) { return score(answer.ids); });
//   if (step.ok()) log(step->reward);
//
// Prompts and answers are token ids: tokenizers are the application's. Answers and steps are those of `prgec run
// --reward` with the same numbers and rewards, token for token and bit for bit. There is no journal of rewards: a run
// that is killed begins again at the last adapter that was saved.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "prge/error.h"
#include "prge/trainer.h"

namespace prge {

// How much better an answer is than the others to its prompt; the formulas are in prgec's docs/feedback.md.
enum class Advantage { Grpo, DrGrpo, Rloo };

struct RolloutSettings {
  uint32_t group = 8; // answers to a prompt: 2 or more, a divisor of the program's batch size
  uint32_t max_tokens = 0; // of an answer; 0 for as many labels as a row of the program has
  std::vector<uint32_t> ends; // tokens that end an answer; the tokenizer's end of text where it is empty
  double temperature = 1; // as in Sampling
  uint32_t top_k = 0;
  double top_p = 1;
  Advantage advantage = Advantage::Grpo;
};

// An answer.
struct Written {
  size_t prompt = 0; // place of its prompt
  std::vector<uint32_t> ids; // with the one that ends it
};

// The result of a step.
struct RewardStep {
  StepResult step; // its loss is the mean negative log-likelihood of the answers
  std::vector<Written> answers;
  std::vector<double> rewards; // of the answers
  double reward = 0; // their mean
};

class Rollouts {
 public:
  // Returns the reward of an answer: a finite number.
  using Reward = std::function<double(const Written&)>;

  // The trainer outlives it. A program without a cache or label weights is refused.
  static Result<std::unique_ptr<Rollouts>> of(Trainer& trainer, const RolloutSettings& settings);
  ~Rollouts();

  // Prompts that a step takes.
  uint32_t prompts_per_step() const;
  // Writes the answers of the next step, `group` to each prompt, and changes nothing.
  Result<std::vector<Written>> write(const std::vector<std::vector<uint32_t>>& prompts);
  // Writes answers to prompts_per_step() prompts and takes a step that makes those with a high reward likelier. A
  // reward that is not finite is refused, and the step is not taken.
  Result<RewardStep> step(const std::vector<std::vector<uint32_t>>& prompts, const Reward& reward);

 private:
  class Impl;
  explicit Rollouts(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace prge
