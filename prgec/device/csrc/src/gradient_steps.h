// A training step of a program that computes its own gradient: one call measures, differentiates and updates. Nothing
// is pending between calls, and no step can be made again without its rows.
#pragma once

#include <string>
#include <vector>

#include "limits.h"
#include "steps.h"

namespace prge {

class GradientSteps : public Steps {
 public:
  GradientSteps(Program& program, const Settings& settings, const Choices& choices);

  Error gather() override;
  // Its losses are that of the batch, twice, as if one query had measured it on both sides; its g is the gradient's
  // norm, NaN where that was not finite and the program changed nothing.
  Error measure(Record& record) override;
  void accept(const Record&) override {}
  Error flush() override {
    return Error::Ok;
  }
  Result<const float*> losses() override {
    return program_.evaluate();
  }

  void observe(const Record&) override {}
  Error replay(const Record& record) override;
  bool can_replay() const override {
    return false;
  }

  void describe(JournalHeader& header) const override;

 private:
  Program& program_;
  double max_g_; // unused, but a run is resumed with the flags it was begun with
  Limits limits_;
  bool stops_;
  // Runs one call of a step; the numbers below are sums over the step's calls so far.
  Error run(float lr, bool is_last);
  int64_t num_calls_ = 0;
  double sum_ = 0;
  std::vector<float> factors_;
};

} // namespace prge
