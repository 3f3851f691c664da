// A training step without gradients. Losses under q random directions, forwards and backwards, become q numbers g, and
// the move that g says happens inside the program's next call. All that is special to such programs is here.
#pragma once

#include <cstdint>
#include <vector>

#include "choices.h"
#include "journal.h"
#include "limits.h"
#include "policy.h"
#include "prge/error.h"
#include "prge/trainer.h"
#include "program.h"

namespace prge {

class ZerothOrder {
 public:
  ZerothOrder(Program& program, const Settings& settings, const Choices& choices);

  // Runs the rows the program was filled with, which makes the pending move; fills in the record of the step it names.
  // After an error no move is pending: the state is that of the step before.
  Error measure(Record& record);
  // The step counts: its move is pending from now on.
  void accept(const Record& record);
  // Makes the pending move, so that the state is the trained one.
  Error flush();
  // Losses of the rows the program was filled with, under weights as they are. Nothing may be pending.
  Result<const float*> losses();

  // Going on with a run: hears of each of its steps once and in order, and makes the moves that the state lacks.
  void hear(const Record& record);
  Error replay(const Record& record);

  // What becomes of steps with numbers too large or none, as a journal's header has it.
  uint32_t policies() const {
    return limits_.flags();
  }

 private:
  // Losses of the next step, behind the move of g.
  Result<const float*> forward(const std::vector<float>& g, double lr, double eps, int64_t seed, uint64_t step);
  // Only the move, which forward(step) makes on entry.
  Error apply(const std::vector<float>& g, double lr, uint64_t step);
  void set_inputs(const std::vector<float>& g, double lr, int64_t seed, uint64_t step);

  Program& program_;
  Estimator estimator_;
  Limits limits_;
  double eps_;
  int64_t seed_;
  std::vector<double> measured_;
  std::vector<float> zeros_, pending_;
  double pending_lr_ = 0;
  uint64_t pending_step_ = 0; // the step whose call makes the move

  // What the inputs of a call point at.
  std::vector<float> g_input_;
  float lr_input_ = 0, eps_input_ = 0;
  int64_t seed_input_ = 0, step_input_ = 0;
};

} // namespace prge
