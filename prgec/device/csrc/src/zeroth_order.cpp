#include "zeroth_order.h"

#include <cmath>

#include "fail.h"

namespace prge {

ZerothOrder::ZerothOrder(Program& program, const Settings& settings, const Choices& choices)
    : program_(program),
      estimator_name_(settings.estimator),
      max_g_(settings.max_g),
      estimator_(choices.estimator),
      limits_(settings.max_g, choices.over_limit, choices.not_finite),
      eps_(settings.eps),
      seed_(settings.seed),
      measured_(static_cast<size_t>(program.manifest().q)),
      zeros_(measured_.size()),
      pending_(measured_.size()) {}

Error ZerothOrder::measure(Record& record) {
  const auto losses = forward(pending_, pending_lr_, eps_, seed_, record.step);
  PRGE_TRY(losses.error());
  pending_ = zeros_;
  const size_t q = zeros_.size();
  const auto batch = static_cast<size_t>(program_.manifest().batch_size);
  record.losses.resize(2 * q);
  bool is_finite = true;
  for (size_t pair = 0; pair < 2 * q; ++pair) {
    double sum = 0.0;
    for (size_t b = 0; b < batch; ++b) {
      const float loss = (*losses)[pair * batch + b];
      is_finite = is_finite && std::isfinite(loss);
      sum = b == 0 ? loss : sum + loss;
    }
    record.losses[pair] = sum / static_cast<double>(batch);
  }
  record.eps = eps_;
  observe(record);
  record.g.assign(measured_.begin(), measured_.end());
  return limits_.apply(record.step, is_finite, record.g);
}

void ZerothOrder::accept(const Record& record) {
  pending_ = record.g;
  pending_lr_ = record.lr;
  pending_step_ = record.step + 1;
}

Error ZerothOrder::flush() {
  if (pending_ != zeros_) {
    PRGE_TRY(apply(pending_, pending_lr_, pending_step_));
    pending_ = zeros_;
  }
  return Error::Ok;
}

Result<const float*> ZerothOrder::losses() {
  return forward(zeros_, 0.0, 0.0, 0, 1);
}

void ZerothOrder::observe(const Record& record) {
  estimator_.coefficients(record.losses.data(), static_cast<int64_t>(measured_.size()), record.eps, measured_.data());
}

Error ZerothOrder::replay(const Record& record) {
  return apply(record.g, record.lr, record.step + 1);
}

void ZerothOrder::describe(JournalHeader& header) const {
  header.eps = eps_;
  header.estimator = estimator_name_;
  header.max_g = max_g_;
  header.policies = limits_.flags();
}

Result<const float*> ZerothOrder::forward(
    const std::vector<float>& g, double lr, double eps, int64_t seed, uint64_t step) {
  inputs_ = {g, static_cast<float>(lr), static_cast<float>(eps), seed, static_cast<int64_t>(step)};
  return program_.forward(inputs_);
}

Error ZerothOrder::apply(const std::vector<float>& g, double lr, uint64_t step) {
  if (program_.manifest().returns_state) {
    // A forward that perturbs nothing and of whose rows no target counts.
    program_.fill({});
    return forward(g, lr, 0.0, seed_, step).error();
  }
  inputs_ = {g, static_cast<float>(lr), 0.0f, seed_, static_cast<int64_t>(step)};
  return program_.apply(inputs_);
}

} // namespace prge
