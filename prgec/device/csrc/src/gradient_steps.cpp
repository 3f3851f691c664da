#include "gradient_steps.h"

#include <cmath>
#include <limits>

#include "fail.h"

namespace prge {

GradientSteps::GradientSteps(Program& program, const Settings& settings, const Choices& choices)
    : program_(program),
      max_g_(settings.max_g),
      limits_(settings.max_g, choices.over_limit, choices.not_finite),
      stops_(choices.not_finite == NotFinite::Stop) {}

Error GradientSteps::measure(Record& record) {
  const auto losses = program_.train(static_cast<float>(record.lr), factors_);
  PRGE_TRY(losses.error());
  const auto batch = static_cast<size_t>(program_.manifest().batch_size);
  double sum = (*losses)[0];
  for (size_t b = 1; b < batch; ++b) {
    sum = sum + (*losses)[b];
  }
  const double loss = sum / static_cast<double>(batch);
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
