// train_and_talk PROGRAM ROWS FOLDER: trains six steps, and after the third and the sixth answers with what it has
// then. Each answer is a line of ids; FOLDER gets the adapter of either moment beside the files of the run.
#include <cstdio>
#include <string>

#include "prge/generator.h"
#include "prge/trainer.h"

namespace {

using prge::Error;

constexpr uint64_t kSteps = 6;

#define TRY(expression)                    \
  do {                                     \
    const Error prge_error = (expression); \
    if (prge_error != Error::Ok)           \
      return prge_error;                   \
  } while (false)

Error step(prge::Trainer& trainer, const prge::Rows& rows, prge::Order& order) {
  std::vector<prge::Row> batch;
  for (const uint32_t example : order.step(trainer.steps_done() + 1)) {
    batch.push_back(rows.right_row(example));
  }
  return trainer.step(batch).error();
}

Error talk(prge::Generator& generator) {
  const auto answer = generator.answer({5, 3, 9, 12, 7}, {12, {}});
  TRY(answer.error());
  for (const uint32_t id : answer->ids) {
    std::printf("%u ", id);
  }
  std::printf("\n");
  return Error::Ok;
}

Error run(const std::string& program, const std::string& path, const std::string& folder) {
  prge::Settings settings;
  settings.steps = kSteps;
  settings.lr = 0.05;
  auto opened = prge::Trainer::open(program, settings);
  TRY(opened.error());
  prge::Trainer& trainer = **opened;
  auto rows = prge::Rows::open(path);
  TRY(rows.error());
  TRY(trainer.begin(**rows, folder));
  auto talks = prge::Generator::of(trainer);
  TRY(talks.error());
  prge::Order order((*rows)->num_examples(), trainer.shape().batch_size, settings.seed);
  while (trainer.steps_done() < kSteps) {
    TRY(step(trainer, **rows, order));
    if (trainer.steps_done() % 3 == 0) {
      TRY(talk(**talks));
      TRY(trainer.save(folder + "/" + std::to_string(trainer.steps_done()) + ".safetensors"));
    }
  }
  return trainer.finish();
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4 || run(argv[1], argv[2], argv[3]) != Error::Ok) {
    std::fprintf(stderr, "%s\n", prge::last_error());
    return 1;
  }
  return 0;
}
