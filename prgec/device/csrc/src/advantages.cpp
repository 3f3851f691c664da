#include "advantages.h"

#include <cmath>
#include <numeric>

namespace prge {

// Added to a spread that divides, as TRL does.
constexpr double kLeastSpread = 1e-4;

std::vector<double> label_weights(
    Advantage advantage, const std::vector<double>& rewards, const std::vector<size_t>& lengths, size_t group,
    uint32_t max_tokens) {
  std::vector<double> out(rewards);
  const auto count = static_cast<double>(group);
  for (size_t first = 0; first < rewards.size(); first += group) {
    const auto begin = rewards.begin() + static_cast<int64_t>(first);
    const double mean = std::accumulate(begin, begin + static_cast<int64_t>(group), 0.0) / count;
    double squares = 0.0;
    for (size_t i = first; i < first + group; ++i) {
      out[i] = rewards[i] - mean;
      squares += out[i] * out[i];
    }
    const double spread = std::sqrt(squares / (count - 1));
    for (size_t i = first; i < first + group; ++i) {
      const auto length = static_cast<double>(lengths[i]);
      switch (advantage) {
        case Advantage::Grpo:
          out[i] /= spread + kLeastSpread;
          break;
        case Advantage::DrGrpo:
          out[i] = out[i] * length / max_tokens;
          break;
        case Advantage::Rloo:
          out[i] = out[i] * (count / (count - 1)) * length;
          break;
      }
    }
  }
  return out;
}

} // namespace prge
