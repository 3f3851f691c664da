#include "gradient_steps.h"

#include <cmath>
#include <limits>
#include <utility>

#include "fail.h"

namespace prge {

GradientSteps::GradientSteps(Program& program, const Settings& settings, const Choices& choices)
    : program_(program),
      max_g_(settings.max_g),
      limits_(settings.max_g, choices.over_limit, choices.not_finite),
      stops_(choices.not_finite == NotFinite::Stop) {}

// Adds the losses of a call to those of its step, the first one first.
Error GradientSteps::run(float lr, bool is_last) {
  const int64_t before = std::exchange(num_calls_, 0); // a call that fails ends its step
  const auto losses = program_.train(lr, {before, is_last}, factors_);
  PRGE_TRY(losses.error());
  for (int64_t b = 0; b < program_.manifest().batch_size; ++b) {
    sum_ = before + b == 0 ? (*losses)[b] : sum_ + (*losses)[b];
  }
  num_calls_ = before + 1;
  return Error::Ok;
}

Error GradientSteps::gather() {
  return run(0, false);
}

Error GradientSteps::measure(Record& record) {
  PRGE_TRY(run(static_cast<float>(record.lr), true));
  const int64_t num_rows = program_.manifest().batch_size * std::exchange(num_calls_, 0);
  const double loss = sum_ / static_cast<double>(num_rows);
  const float norm = factors_[1];
  if (stops_ && !(std::isfinite(loss) && std::isfinite(norm))) {
    return fail(
        Error::InvalidState,
        "the gradient of step %llu is not finite; training stopped, state kept. Hint: lower --lr, or go on with "
        "--not-finite skip",
        static_cast<unsigned long long>(record.step));
  }
  record.losses = {loss, loss};
  record.g = {std::isfinite(norm) ? norm : std::numeric_limits<float>::quiet_NaN()};
  record.eps = 0;
  return Error::Ok;
}

Error GradientSteps::replay(const Record&) {
  return fail(
      Error::InvalidArgument,
      "a program that computes gradients makes its steps from the rows, which a journal does not have. Hint: resume "
      "the run with its data: --resume");
}

void GradientSteps::describe(JournalHeader& header) const {
  header.eps = 0;
  header.estimator = program_.manifest().optimizer;
  header.max_g = max_g_;
  header.policies = limits_.flags();
}

} // namespace prge
