// A training step without gradients. Losses under q random directions, forwards and backwards, become q numbers g, and
// the update that g gives happens inside the program's next call. All that is special to such programs is here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "limits.h"
#include "policy.h"
#include "steps.h"

namespace prge {

class ZerothOrder : public Steps {
 public:
  ZerothOrder(Program& program, const Settings& settings, const Choices& choices);

  // Makes the pending update on the way.
  Error measure(Record& record) override;
  void accept(const Record& record) override;
  Error flush() override;
  Result<const float*> losses() override;

  void observe(const Record& record) override;
  Error replay(const Record& record) override;
  // The noise of a dual state is nowhere but in its copies.
  bool can_replay() const override {
    return !program_.manifest().is_dual;
  }

  void describe(JournalHeader& header) const override;

 private:
  // Losses of the next step, after the update by g.
  Result<const float*> forward(const std::vector<float>& g, double lr, double eps, int64_t seed, uint64_t step);
  // Only the update, which forward(step) makes on entry.
  Error apply(const std::vector<float>& g, double lr, uint64_t step);

  Program& program_;
  std::string estimator_name_;
  double max_g_;
  Estimator estimator_;
  Limits limits_;
  double eps_;
  int64_t seed_;
  std::vector<double> measured_;
  std::vector<float> zeros_, pending_;
  double pending_lr_ = 0;
  uint64_t pending_step_ = 0; // the step whose call makes the update
  StepInputs inputs_; // what the inputs of a call point at
};

} // namespace prge
