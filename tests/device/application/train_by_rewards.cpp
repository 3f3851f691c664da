// train_by_rewards PROGRAM ADVANTAGE STEPS ADAPTER: trains on two prompts a step and prints the answers, a line of ids
// each, with the reward of the step after them. An answer is worth the mean of its ids modulo 7.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "prge/rollouts.h"

namespace {

using prge::Error;

#define TRY(expression)                    \
  do {                                     \
    const Error prge_error = (expression); \
    if (prge_error != Error::Ok)           \
      return prge_error;                   \
  } while (false)

double reward(const prge::Written& answer) {
  double sum = 0;
  for (const uint32_t id : answer.ids) {
    sum += id % 7;
  }
  return sum / static_cast<double>(answer.ids.size());
}

Error run(const std::string& program, int advantage, uint64_t steps, const std::string& adapter) {
  prge::Settings settings;
  settings.lr = 0.05;
  settings.seed = 11;
  settings.schedule = "constant";
  settings.accumulate = 2;
  auto opened = prge::Trainer::open(program, settings);
  TRY(opened.error());
  prge::Trainer& trainer = **opened;
  prge::RolloutSettings how;
  how.group = 4;
  how.top_k = 50;
  for (uint32_t id = 0; id < 320; id += 5) {
    how.ends.push_back(id);
  }
  how.advantage = static_cast<prge::Advantage>(advantage);
  const auto rollouts = prge::Rollouts::of(trainer, how);
  TRY(rollouts.error());
  while (trainer.steps_done() < steps) {
    const auto n = static_cast<uint32_t>(trainer.steps_done());
    const auto step = (*rollouts)->step({{5, 3, 9 + n}, {12, 7, 8, 20 + n, 4}}, reward);
    TRY(step.error());
    for (const prge::Written& answer : step->answers) {
      for (const uint32_t id : answer.ids) {
        std::printf("%u ", id);
      }
      std::printf("\n");
    }
    std::printf("reward %.17g\n", step->reward);
  }
  return trainer.save(adapter);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 5 || run(argv[1], std::atoi(argv[2]), std::strtoull(argv[3], nullptr, 10), argv[4]) != Error::Ok) {
    std::fprintf(stderr, "%s\n", prge::last_error());
    return 1;
  }
  return 0;
}
