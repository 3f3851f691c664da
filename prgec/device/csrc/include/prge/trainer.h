// Trains a program made by `prgec compile`, on a device that can only run inference.
//
//   auto opened = prge::Trainer::open("model.pte", settings);
//   if (!opened.ok()) return log(prge::last_error());
//   prge::Trainer& trainer = **opened;
//   auto rows = prge::Rows::open("rows.bin");                  // made by `prgec tokenize`
//   trainer.begin(**rows, "run");                              // or trainer.resume(**rows, "run") after a restart
//   const uint32_t size = trainer.shape().batch_size * settings.accumulate;
//   prge::Order order((*rows)->num_examples(), size, settings.seed);
//   while (trainer.steps_done() < settings.steps) {
//     trainer.step(batch);                                     // of the rows order.step(trainer.steps_done() + 1)
//   }
//   trainer.finish();                                          // run/adapter.safetensors, run/journal.bin
//
// Programs compiled with --method exact or shortcut compute their own gradient: one step is one call over batch_size
// rows, which trains and keeps an optimiser's state, or several such calls. eps, estimator and max_g have no effect on
// them.
//
// Programs compiled with --method prge have no backward pass and no optimiser state: one step is one forward pass over
// 2 * q * batch_size rows, every example under q random directions, forwards and backwards. The differences of the
// losses give the update along each direction; the program makes it in the next call.
//
// A Trainer is not thread-safe; different trainers are independent. Nothing throws.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "prge/error.h"
#include "prge/rows.h"

namespace prge {

// How to train. Two runs with equal settings, program, rows and start are equal bit for bit.
struct Settings {
  uint64_t steps = 1000; // the schedule spans them
  std::optional<double> lr; // learning rate at the start; the program's own where nobody names one
  uint32_t accumulate = 1; // calls a step, whose gradients are averaged; more than 1 needs a program that can
  double eps = 1e-2; // size of the perturbation
  int64_t seed = 0; // of the random directions and the order of examples
  std::string schedule = "linear"; // or "constant", "cosine": how lr falls over the run
  uint64_t warmup = 0; // steps over which lr rises before the schedule begins
  std::string estimator = "norm"; // steps of equal length; or "plain", the paper's; or "std"
  double max_g = 0; // largest |g| a step may apply, 0 for any
  std::string over_limit = "clip"; // for a step with a larger one; or "skip"
  std::string not_finite = "stop"; // for a step whose loss or g is not finite; or "skip"
  double diverged = 0; // times the start's mean loss at which a run ends with its best state, 0 for never
  uint64_t window = 50; // steps those means are taken over
  bool verify = true; // compare the program with its checksums before any of it runs
  std::string packed_weights; // folder for XNNPACK's packed weights, which are mapped; empty to keep them in memory
  void (*warn)(const char* line) = nullptr; // receives warnings
};

// The sizes the program was compiled for.
struct Shape {
  uint32_t q; // directions a step
  uint32_t batch_size; // examples a call, and a step unless it is several calls
  uint32_t max_tokens; // tokens a row may have
  uint32_t max_labels; // label positions a row may have
  uint32_t vocab_size;
};

struct StepResult {
  uint64_t step; // counted from 1
  double loss; // mean over all rows
  double lr;
};

struct Evaluation {
  double loss; // mean over examples, right answer
  double accuracy; // share of examples whose right answer has the lowest loss; NaN without candidates
  uint64_t num_examples;
};

class Trainer {
 public:
  // Maps the program and loads its methods. Weights stay in the page cache where the backend allows.
  static Result<std::unique_ptr<Trainer>> open(const std::string& program_path, const Settings& settings);
  ~Trainer();

  const Shape& shape() const;
  uint64_t steps_done() const;

  // Starts a run whose journal lives in `folder`, which is made if missing. Refuses a folder with an unfinished run,
  // unless it is to be discarded, and one that another process trains in.
  Error begin(const Rows& rows, const std::string& folder, bool discard = false);
  // Resumes the run in `folder`: last snapshot, then every later step of the journal, without a forward pass.
  // The state is then the one the interrupted run had, bit for bit. A program that computes gradients resumes at the
  // snapshot, and the steps it takes again come out the same. Returns the number of steps done; 0 where no run was
  // begun.
  Result<uint64_t> resume(const Rows& rows, const std::string& folder);

  // Trains on exactly batch_size * accumulate rows. The journal, where there is one, has the step when this returns.
  // After InvalidState call finish: it keeps the state of the step before, or the best one of a run that diverged.
  Result<StepResult> step(const std::vector<Row>& batch);
  // Scores every candidate of every example under the present weights, without changing them.
  Result<Evaluation> evaluate(const Rows& rows);
  // Whether the journal has an evaluation of the present weights.
  bool is_evaluated() const;
  // Keeps the present state, so that resuming has little to do. Call it every few minutes.
  Error snapshot();
  // Ends the run: adapter.safetensors and journal.bin get their names.
  Error finish();

  // Writes an adapter: the trained weights, a small file that belongs to one base model.
  Error save(const std::string& path);
  // Puts an adapter into the program, between any two calls but those of one run: milliseconds, and nothing of the
  // program is loaded again. Training starts afresh, with step 1 and an empty optimiser.
  Error load_adapter(const std::string& path);

  // SHA-256 of the trained weights, in hexadecimal.
  Result<std::string> state_sha256();

 private:
  friend class Generator; // which answers with the program of a trainer
  friend class Rollouts; // which writes answers with it, and trains on them
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace prge
