#include "prge/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "adapter.h"
#include "fail.h"
#include "limits.h"
#include "policy.h"
#include "trainer_impl.h"

namespace prge {

namespace {

Error check_settings(const Settings& settings) {
  if (settings.steps < 1) {
    return fail(Error::InvalidArgument, "the number of steps is 0; expected at least 1");
  }
  if (!std::isfinite(settings.lr) || settings.lr < 0) {
    return fail(Error::InvalidArgument, "the learning rate is %g; expected a finite number, 0 or more", settings.lr);
  }
  if (!std::isfinite(settings.eps) || settings.eps <= 0) {
    return fail(Error::InvalidArgument, "eps is %g; expected a finite number above 0", settings.eps);
  }
  if (settings.warmup >= settings.steps) {
    return fail(Error::InvalidArgument, "the warm-up takes all steps; expected fewer");
  }
  if (!is_schedule(settings.schedule)) {
    return fail(
        Error::InvalidArgument, "unknown schedule %s. Hint: known: constant, linear, cosine",
        settings.schedule.c_str());
  }
  if (!is_estimator(settings.estimator)) {
    return fail(
        Error::InvalidArgument, "unknown estimator %s. Hint: known: plain, norm, std", settings.estimator.c_str());
  }
  return check_limits(settings);
}

} // namespace

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

Result<std::unique_ptr<Trainer>> Trainer::open(const std::string& program_path, const Settings& settings) {
  PRGE_TRY(check_settings(settings));
  auto program = Program::open(program_path);
  if (!program.ok()) {
    return program.error();
  }
  return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Impl>(std::move(*program), settings)));
}

const Shape& Trainer::shape() const {
  return impl_->shape;
}

uint64_t Trainer::steps_done() const {
  return impl_->steps_done;
}

Result<StepResult> Trainer::step(const std::vector<Row>& batch) {
  Impl& t = *impl_;
  PRGE_TRY(t.divergence.check());
  PRGE_TRY(t.check_batch(batch));
  for (size_t n = 0; n < t.rows.size(); ++n) {
    t.rows[n] = batch[n % batch.size()];
  }
  t.program->fill(t.rows);
  StepResult result = {t.steps_done + 1, 0.0, 0.0};
  result.lr = learning_rate(t.settings.schedule, t.settings.lr, t.settings.warmup, t.settings.steps, result.step);
  PRGE_TRY(t.measure(result));
  if (t.journal.is_open()) {
    t.record.kind = RecordKind::Step;
    t.record.step = result.step;
    t.record.lr = result.lr;
    t.record.eps = t.settings.eps;
    PRGE_TRY(t.journal.write(t.record));
  }
  t.steps_done = result.step;
  t.pending = t.record.g;
  t.pending_lr = result.lr;
  t.divergence.hear(result.loss);
  PRGE_TRY(t.divergence.check());
  return result;
}

// Runs one forward: applies the step before, turns this one's losses into record.losses and record.g.
Error Trainer::Impl::measure(StepResult& result) {
  const auto losses = program->forward(pending.data(), pending_lr, settings.eps, settings.seed, result.step);
  if (!losses.ok()) {
    return losses.error();
  }
  pending = zeros;
  const size_t q = zeros.size();
  const auto batch = static_cast<size_t>(manifest.batch_size);
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
  result.loss = ordered_mean(record.losses.data(), 2 * q);
  estimator.coefficients(record.losses.data(), manifest.q, settings.eps, g.data());
  for (size_t i = 0; i < q; ++i) {
    record.g[i] = static_cast<float>(g[i]);
  }
  return limit(settings, result.step, is_finite, record.g);
}

Error Trainer::Impl::check_batch(const std::vector<Row>& batch) const {
  if (batch.size() != shape.batch_size) {
    return fail(Error::InvalidArgument, "a batch of %zu rows; the program takes %u", batch.size(), shape.batch_size);
  }
  for (const Row& row : batch) {
    bool is_good = row.num_tokens >= 1 && row.num_tokens <= shape.max_tokens && row.num_labels >= 1 &&
        row.num_labels <= shape.max_labels;
    for (uint32_t i = 0; is_good && i < row.num_tokens; ++i) {
      is_good = row.tokens[i] < shape.vocab_size;
    }
    for (uint32_t i = 0; is_good && i < row.num_labels; ++i) {
      is_good = row.label_pos[i] < row.num_tokens && row.targets[i] < shape.vocab_size;
    }
    if (!is_good) {
      return fail(Error::InvalidExternalData, "a row does not fit the program: length, token or label position");
    }
  }
  return Error::Ok;
}

// Applies the pending update, so that the state is the trained one; the next step then passes g = 0.
Error Trainer::Impl::flush() {
  if (pending != zeros) {
    PRGE_TRY(program->apply(pending.data(), pending_lr, settings.seed, steps_done + 1));
    pending = zeros;
  }
  return Error::Ok;
}

Result<Evaluation> Trainer::evaluate(const Rows& rows) {
  Impl& t = *impl_;
  PRGE_TRY(t.check_fit(rows));
  PRGE_TRY(t.flush());
  if (t.journal.is_open() && t.steps_done == t.settings.steps) {
    PRGE_TRY(t.record_state()); // the result comes before its score
  }
  std::vector<double> losses;
  PRGE_TRY(t.score(rows, losses));
  const uint32_t candidates = rows.num_candidates();
  double sum = 0.0;
  uint64_t num_right = 0;
  for (uint32_t example = 0; example < rows.num_examples(); ++example) {
    const double* first = &losses[size_t{example} * candidates];
    const double loss = first[rows.answer(example)];
    sum = example == 0 ? loss : sum + loss;
    num_right += std::min_element(first, first + candidates) == first + rows.answer(example);
  }
  const double total = rows.num_examples();
  const double accuracy = candidates > 1 ? static_cast<double>(num_right) / total : NAN;
  const Evaluation result = {sum / total, accuracy, rows.num_examples()};
  if (!std::isfinite(result.loss)) {
    return fail(Error::InvalidState, "the evaluation loss is not finite. Hint: the state has diverged: lower --lr");
  }
  if (t.journal.is_open()) {
    Record record;
    record.kind = RecordKind::Evaluation;
    record.step = t.steps_done;
    record.loss = result.loss;
    record.accuracy = result.accuracy;
    record.num_examples = result.num_examples;
    PRGE_TRY(t.journal.write(record));
  }
  t.evaluated_at = t.steps_done;
  return result;
}

bool Trainer::is_evaluated() const {
  return impl_->evaluated_at == impl_->steps_done;
}

// Losses of all rows, shortest rows first, as many different ones a call as the program can hold.
Error Trainer::Impl::score(const Rows& data, std::vector<double>& losses) {
  const size_t num_rows = size_t{data.num_examples()} * data.num_candidates();
  const auto row_of = [&data](size_t i) {
    return data.row(static_cast<uint32_t>(i / data.num_candidates()), static_cast<uint32_t>(i % data.num_candidates()));
  };
  std::vector<size_t> order(num_rows);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&row_of](size_t left, size_t right) {
    return row_of(left).num_tokens < row_of(right).num_tokens;
  });
  losses.resize(num_rows);
  const auto distinct = static_cast<size_t>(manifest.num_distinct_rows());
  for (size_t first = 0; first < num_rows; first += distinct) {
    const size_t count = std::min(distinct, num_rows - first);
    for (size_t n = 0; n < rows.size(); ++n) {
      rows[n] = row_of(order[first + std::min(n % distinct, count - 1)]);
    }
    program->fill(rows);
    const auto found = program->forward(zeros.data(), 0.0, 0.0, 0, 1);
    if (!found.ok()) {
      return found.error();
    }
    for (size_t n = 0; n < count; ++n) {
      losses[order[first + n]] = (*found)[n];
    }
  }
  return Error::Ok;
}

Error Trainer::Impl::check_fit(const Rows& data) const {
  if (std::memcmp(data.tokenizer_sha256_, program->tokenizer_sha256().bytes, sizeof(Digest)) != 0) {
    return fail(
        Error::InvalidExternalData, "the rows were made with another tokenizer than the program's (%s)",
        data.path_.c_str());
  }
  if (data.max_tokens_ > shape.max_tokens || data.max_labels_ > shape.max_labels ||
      data.vocab_size_ > shape.vocab_size) {
    return fail(
        Error::InvalidExternalData,
        "the rows were made for T = %u, K = %u, V = %u; the program has T = %u, K = %u, V = %u (%s)", data.max_tokens_,
        data.max_labels_, data.vocab_size_, shape.max_tokens, shape.max_labels, shape.vocab_size, data.path_.c_str());
  }
  return Error::Ok;
}

Error Trainer::save(const std::string& path) {
  PRGE_TRY(impl_->flush());
  return save_adapter(path, *impl_->program);
}

Error Trainer::load(const std::string& path) {
  if (impl_->journal.is_open()) {
    return fail(Error::InvalidArgument, "an adapter is loaded before a run begins");
  }
  PRGE_TRY(impl_->flush());
  return load_adapter(path, *impl_->program);
}

Result<std::string> Trainer::state_sha256() {
  PRGE_TRY(impl_->flush());
  return impl_->program->masters_sha256().hex();
}

} // namespace prge
