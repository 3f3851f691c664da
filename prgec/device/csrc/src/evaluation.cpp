// Scores of candidates under the present weights.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "fail.h"
#include "trainer_impl.h"

namespace prge {

namespace {

// Mean loss of the right answers, and how often they have the lowest one.
Evaluation summary(const Rows& rows, const std::vector<double>& losses) {
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
  return {sum / total, accuracy, rows.num_examples()};
}

} // namespace

Result<Evaluation> Trainer::evaluate(const Rows& rows) {
  Impl& t = *impl_;
  PRGE_TRY(t.check_fit(rows));
  PRGE_TRY(t.method->flush());
  if (t.journal.is_open() && t.steps_done == t.settings.steps) {
    PRGE_TRY(t.record_state()); // the result comes before its score
  }
  if (t.journal.is_open() && t.steps_done == 0) {
    PRGE_TRY(t.program->make_room()); // a score before it would hold memory of its own size while a step takes more
  }
  std::vector<double> losses;
  PRGE_TRY(t.score(rows, losses));
  const Evaluation result = summary(rows, losses);
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
  std::vector<Row> batch;
  const auto distinct = static_cast<size_t>(manifest.num_distinct_rows());
  for (size_t first = 0; first < num_rows; first += distinct) {
    const size_t count = std::min(distinct, num_rows - first);
    batch.clear();
    for (size_t n = 0; n < count; ++n) {
      batch.push_back(row_of(order[first + n]));
    }
    batch.resize(distinct, batch.back());
    fill(batch.data(), batch.size());
    const auto found = method->losses();
    PRGE_TRY(found.error());
    for (size_t n = 0; n < count; ++n) {
      losses[order[first + n]] = (*found)[n];
    }
  }
  return Error::Ok;
}

} // namespace prge
