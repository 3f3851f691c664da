#include "divergence.h"

#include <cmath>
#include <limits>

#include "fail.h"

namespace prge {

void Divergence::observe(double loss) {
  ++step_;
  if (factor_ == 0 || is_over_) {
    return;
  }
  recent_.push_back(loss);
  if (recent_.size() > window_) {
    recent_.pop_front();
  }
  if (recent_.size() < window_) {
    return;
  }
  last_ = mean();
  if (step_ == window_) {
    start_ = last_;
  }
  if (std::isfinite(last_) && (best_step_ == 0 || last_ < best_)) {
    best_ = last_;
    best_step_ = step_;
  }
  is_over_ = !(last_ <= factor_ * start_);
}

Error Divergence::check() const {
  if (!is_over_) {
    return Error::Ok;
  }
  return fail(
      Error::InvalidState,
      "training diverged: the mean loss of %zu steps was %.4g at the start and is %.4g at step %llu. Hint: lower --lr "
      "or --eps",
      recent_.size(), start_, last_, static_cast<unsigned long long>(step_));
}

// Summed in order; infinity where no loss is finite.
double Divergence::mean() const {
  double sum = 0.0;
  size_t count = 0;
  for (const double loss : recent_) {
    if (std::isfinite(loss)) {
      sum = sum + loss;
      ++count;
    }
  }
  return count != 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::infinity();
}

} // namespace prge
