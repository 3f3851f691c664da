// Every f32 operation is rounded on its own, in the order written in prgec/runtime_ops/optimizers.py.
#include "optimizers.h"

#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

namespace prgec {
namespace {

using executorch::extension::parallel_for;

constexpr int kLanes = 8;
constexpr double kSmallestRms = 1e-20;
constexpr int64_t kGrain = 1 << 14;

bool is_finite(const Losses& losses) {
  return std::all_of(losses.values, losses.values + losses.size, [](float value) { return std::isfinite(value); });
}

// The first one first.
double mean(const Losses& losses) {
  double total = 0.0;
  for (int64_t row = 0; row < losses.size; ++row) {
    total = total + static_cast<double>(losses.values[row]);
  }
  return total / static_cast<double>(losses.size);
}

// Constants that all elements of an update share.
struct Step {
  float lr;
  float scale;
  float by_w1;
  float by_w2;
  // 1 - lr decay; `decays` says whether it is used at all.
  float keep;
  bool decays;
};

Step step_of(float lr, const float* factors, double decay) {
  return {lr, factors[0], factors[2], factors[3], 1.0f - lr * static_cast<float>(decay), decay != 0.0};
}

float moved(const Step& step, float master, float direction) {
  const float kept = step.decays ? master * step.keep : master;
  return kept - step.lr * direction;
}

// The larger one; not a number where one is none, as in eager mode.
float larger(float a, float b) {
  return std::isnan(a) || a > b ? a : b;
}

// Runs `direction(e)` over all elements, moves the master along it and writes the largest change. A maximum is the same
// in any order, so the split over threads does not change a bit.
template <typename Direction>
bool move(const Step& step, float* weights, int64_t size, float* largest, const Direction& direction) {
  largest[0] = 0.0f;
  if (step.scale == 0.0f) {
    return true;
  }
  std::mutex guard;
  return parallel_for(0, size, kGrain, [&](int64_t begin, int64_t end) {
    float most = 0.0f;
    for (int64_t e = begin; e < end; ++e) {
      const float before = weights[e];
      weights[e] = moved(step, before, direction(e));
      most = larger(most, std::fabs(weights[e] - before));
    }
    const std::lock_guard<std::mutex> lock(guard);
    largest[0] = larger(largest[0], most);
  });
}

} // namespace

double sum_of_squares(const float* values, int64_t size) {
  double lanes[kLanes] = {};
  int64_t e = 0;
  for (; e + kLanes <= size; e += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = values[e + lane];
      lanes[lane] = lanes[lane] + value * value;
    }
  }
  for (int lane = 0; e < size; ++e, ++lane) {
    const double value = values[e];
    lanes[lane] = lanes[lane] + value * value;
  }
  double total = 0.0;
  for (const double lane : lanes) {
    total = total + lane;
  }
  return total;
}

void step_scale(
    float* running, double total, int64_t count, const Losses& losses, float lr, const Rule& rule, float* factors) {
  const double norm = std::sqrt(total);
  double scale = rule.clip > 0.0 && norm > rule.clip ? rule.clip / norm : 1.0;
  const double square = rule.beta2 * static_cast<double>(running[0]) +
      (1.0 - rule.beta2) * ((scale * scale) * (total / static_cast<double>(count)));
  if (!is_finite(losses) || !std::isfinite(static_cast<float>(norm)) || !std::isfinite(static_cast<float>(square))) {
    factors[0] = 0.0f;
    factors[1] = std::numeric_limits<float>::infinity();
    factors[2] = factors[3] = 1.0f;
    return;
  }
  const double w1 = rule.beta1 * static_cast<double>(running[1]) + (1.0 - rule.beta1);
  const double w2 = rule.beta2 * static_cast<double>(running[2]) + (1.0 - rule.beta2);
  running[0] = static_cast<float>(square);
  running[1] = static_cast<float>(w1);
  running[2] = static_cast<float>(w2);
  running[3] = 0.0f;
  if (rule.normalise) {
    scale = scale / (std::sqrt(square / w2) + kSmallestRms);
  }
  const double rate = static_cast<double>(lr);
  const double aim = rule.normalise ? rate * scale * total : rate * norm * std::sqrt(static_cast<double>(count));
  const double most = rule.polyak * mean(losses);
  const double shorter = most > 0.0 && aim > most ? most / aim : 1.0;
  factors[0] = static_cast<float>(rule.normalise ? scale * shorter : scale);
  factors[1] = static_cast<float>(norm);
  factors[2] = static_cast<float>((rule.normalise ? 1.0 : shorter) / w1);
  factors[3] = static_cast<float>(1.0 / w2);
}

bool sgd_update(const Site& site, float lr, const float* factors, const Rule& rule, float* largest) {
  const Step step = step_of(lr, factors, rule.decay);
  const float* g = site.gradient;
  return move(step, site.master, site.size, largest, [&](int64_t e) { return g[e] * step.scale; });
}

bool momentum_update(const Site& site, float lr, const float* factors, const Rule& rule, float* largest) {
  const Step step = step_of(lr, factors, rule.decay);
  const float keep = static_cast<float>(rule.beta1);
  const float add = static_cast<float>(1.0 - rule.beta1);
  const float* g = site.gradient;
  float* m = site.mean;
  return move(step, site.master, site.size, largest, [&](int64_t e) {
    m[e] = keep * m[e] + add * (g[e] * step.scale);
    return m[e] * step.by_w1;
  });
}

bool adamw_update(const Site& site, float lr, const float* factors, const Rule& rule, float* largest) {
  const Step step = step_of(lr, factors, rule.decay);
  const float keep1 = static_cast<float>(rule.beta1), add1 = static_cast<float>(1.0 - rule.beta1);
  const float keep2 = static_cast<float>(rule.beta2), add2 = static_cast<float>(1.0 - rule.beta2);
  const float floor = static_cast<float>(rule.eps);
  const float* g = site.gradient;
  float* m = site.mean;
  float* v = site.square;
  return move(step, site.master, site.size, largest, [&](int64_t e) {
    const float scaled = g[e] * step.scale;
    m[e] = keep1 * m[e] + add1 * scaled;
    v[e] = keep2 * v[e] + add2 * (scaled * scaled);
    return (m[e] * step.by_w1) / (std::sqrt(v[e] * step.by_w2) + floor);
  });
}

bool update(const Site& site, float lr, const float* factors, const Rule& rule, float* largest) {
  if (site.square != nullptr) {
    return adamw_update(site, lr, factors, rule, largest);
  }
  return site.mean != nullptr ? momentum_update(site, lr, factors, rule, largest)
                              : sgd_update(site, lr, factors, rule, largest);
}

bool accumulate(float* total, const float* value, int64_t size, int64_t before, bool is_last, float* means) {
  const float count = static_cast<float>(before + 1);
  return parallel_for(0, size, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      total[e] = before == 0 ? value[e] : total[e] + value[e];
      if (means != nullptr) {
        means[e] = is_last ? total[e] / count : std::numeric_limits<float>::infinity();
      }
    }
  });
}

} // namespace prgec
