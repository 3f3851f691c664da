#include "prge/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

#include "adapter.h"
#include "fail.h"
#include "journal.h"
#include "policy.h"
#include "program.h"

namespace prge {

namespace {

constexpr uint64_t kNever = ~0ull;
constexpr char kJournal[] = "/journal.bin";
constexpr char kPartialJournal[] = "/journal.partial.bin";
constexpr char kSnapshot[] = "/snapshot.safetensors";
constexpr char kAdapter[] = "/adapter.safetensors";

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
        Error::InvalidArgument, "unknown schedule %s. Hint: known: constant, linear, cosine", settings.schedule.c_str());
  }
  if (!is_estimator(settings.estimator)) {
    return fail(Error::InvalidArgument, "unknown estimator %s. Hint: known: plain, std", settings.estimator.c_str());
  }
  return Error::Ok;
}

// Finds what differs between two runs, in the words of prge_train's flags; null where nothing does.
const char* difference(const JournalHeader& a, const JournalHeader& b) {
  const std::pair<bool, const char*> fields[] = {
      {a.q != b.q, "the program's q"},
      {a.batch_size != b.batch_size, "the program's batch size"},
      {a.seed != b.seed, "--seed"},
      {a.steps != b.steps, "--steps"},
      {a.lr != b.lr, "--lr"},
      {a.eps != b.eps, "--eps"},
      {a.schedule != b.schedule, "--lr-schedule or --warmup"},
      {a.estimator != b.estimator, "--estimator"},
      {a.num_examples != b.num_examples, "the number of examples"},
      {a.rows_crc != b.rows_crc, "the data"},
      {!(a.program == b.program), "the program"},
      {!(a.start == b.start), "the adapter to start from"}};
  for (const auto& [is_other, name] : fields) {
    if (is_other) {
      return name;
    }
  }
  return nullptr;
}

} // namespace

class Trainer::Impl {
 public:
  Impl(std::unique_ptr<Program> opened, const Settings& chosen)
      : program(std::move(opened)), manifest(program->manifest()), settings(chosen) {
    const auto q = static_cast<size_t>(manifest.q);
    pending.resize(q);
    zeros.resize(q);
    g.resize(q);
    record.losses.resize(2 * q);
    record.g.resize(q);
    rows.resize(static_cast<size_t>(manifest.num_rows()));
    shape = {
        static_cast<uint32_t>(manifest.q),
        static_cast<uint32_t>(manifest.batch_size),
        static_cast<uint32_t>(manifest.seq_len),
        static_cast<uint32_t>(manifest.num_labels),
        static_cast<uint32_t>(manifest.vocab_size)};
  }

  void warn(const char* line) const {
    if (settings.warn != nullptr) {
      settings.warn(line);
    }
  }

  Error flush();
  Error measure(StepResult& result);
  Error check_batch(const std::vector<Row>& batch) const;
  Error check_fit(const Rows& data) const;
  Error score(const Rows& data, std::vector<double>& losses);
  JournalHeader header_of(const Rows& data) const;
  Result<uint64_t> take_up(const std::string& path, JournalReader& reader);
  uint64_t load_snapshot(JournalReader& reader);
  Error replay(JournalReader& reader, uint64_t first);
  Error record_state();

  std::unique_ptr<Program> program;
  const Manifest& manifest;
  Settings settings;
  Shape shape;
  uint64_t steps_done = 0;
  // The update of the last step happens inside the next call; until then it waits here.
  std::vector<float> pending;
  double pending_lr = 0;
  std::vector<float> zeros;
  std::vector<double> g;
  Record record;
  std::vector<Row> rows; // of one forward call
  std::string folder;
  JournalWriter journal;
  // Steps of the last records of these kinds.
  uint64_t evaluated_at = kNever, state_at = kNever;
};

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

// ---- training -------------------------------------------------------------------------------------------------------

Result<StepResult> Trainer::step(const std::vector<Row>& batch) {
  Impl& t = *impl_;
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
  estimate(settings.estimator, record.losses.data(), manifest.q, settings.eps, g.data());
  for (size_t i = 0; i < q; ++i) {
    record.g[i] = static_cast<float>(g[i]);
    is_finite = is_finite && std::isfinite(record.g[i]);
  }
  if (!is_finite) {
    return fail(
        Error::InvalidState,
        "a loss or gradient of step %llu is not finite; training stopped, state kept. Hint: lower --lr or --eps",
        static_cast<unsigned long long>(result.step));
  }
  return Error::Ok;
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

// ---- evaluation -----------------------------------------------------------------------------------------------------

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

// ---- the journal ----------------------------------------------------------------------------------------------------

Error Trainer::begin(const Rows& rows, const std::string& folder) {
  Impl& t = *impl_;
  PRGE_TRY(t.check_fit(rows));
  const std::string path = folder + kPartialJournal;
  if (is_file(path)) {
    auto reader = JournalReader::open(path);
    Record record;
    while (reader.ok() && (*reader)->next(record)) {
      if (record.kind == RecordKind::Step) {
        return fail(
            Error::InvalidArgument,
            "the folder holds an unfinished run (%s). Hint: go on with --resume, or discard it with --force",
            folder.c_str());
      }
    }
  }
  PRGE_TRY(make_folder(folder));
  t.folder = folder;
  return t.journal.create(path, t.header_of(rows));
}

Result<uint64_t> Trainer::resume(const Rows& rows, const std::string& folder) {
  Impl& t = *impl_;
  const std::string partial = folder + kPartialJournal, complete = folder + kJournal;
  const std::string& path = is_file(partial) ? partial : complete;
  if (!is_file(path)) {
    t.warn("nothing to resume: starting with step 1");
    PRGE_TRY(begin(rows, folder));
    return uint64_t{0};
  }
  PRGE_TRY(t.check_fit(rows));
  if (t.manifest.is_dual) {
    return fail(Error::InvalidArgument, "a program with dual state keeps its noise in memory: it cannot be resumed");
  }
  auto reader = JournalReader::open(path);
  if (!reader.ok()) {
    return reader.error();
  }
  if (const char* what = difference((*reader)->header(), t.header_of(rows)); what != nullptr) {
    return fail(
        Error::InvalidArgument, "%s differs from the run to resume (%s). Hint: resume with the flags it was started with",
        what, path.c_str());
  }
  t.folder = folder;
  return t.take_up(path, **reader);
}

Result<uint64_t> Trainer::Impl::take_up(const std::string& path, JournalReader& reader) {
  const std::string partial = folder + kPartialJournal;
  steps_done = 0;
  for (reader.rewind(); reader.next(record);) {
    steps_done += record.kind == RecordKind::Step;
    if (record.kind == RecordKind::Evaluation) {
      evaluated_at = record.step;
    } else if (record.kind == RecordKind::State) {
      state_at = record.step;
    }
  }
  const uint64_t good_bytes = reader.place();
  if (path != partial && steps_done >= settings.steps) {
    return fail(Error::InvalidArgument, "the run is complete: all its steps are done (%s)", folder.c_str());
  }
  if (good_bytes != reader.size()) {
    char line[128];
    snprintf(line, sizeof(line), "the last %llu bytes of the journal are damaged: going on after step %llu",
             static_cast<unsigned long long>(reader.size() - good_bytes), static_cast<unsigned long long>(steps_done));
    warn(line);
  }
  PRGE_TRY(replay(reader, load_snapshot(reader)));
  if (path != partial) {
    PRGE_TRY(rename_file(path, partial));
  }
  PRGE_TRY(journal.append_to(partial, good_bytes));
  return steps_done;
}

// Loads the snapshot whose hash the journal has and returns its step; 0 where there is none. A snapshot that is damaged
// or of another run costs time, not the run.
uint64_t Trainer::Impl::load_snapshot(JournalReader& reader) {
  if (program->manifest().returns_state) {
    return 0; // nothing can be put into the program: every step is replayed
  }
  for (const char* name : {kSnapshot, kAdapter}) {
    if (!is_file(folder + name)) {
      continue;
    }
    // Loading checks everything before it changes anything, but only the hash says whether it is the right one.
    std::vector<std::vector<float>> start;
    for (const SiteState& site : program->sites()) {
      start.emplace_back(site.data, site.data + site.numel());
    }
    if (load_adapter(folder + name, *program) != Error::Ok) {
      warn(last_error());
      continue;
    }
    const Digest state = program->masters_sha256();
    uint64_t step = 0;
    bool is_known = false;
    for (reader.rewind(); reader.next(record);) {
      if (record.kind == RecordKind::State && record.state == state) {
        step = record.step;
        is_known = true;
      }
    }
    if (is_known) {
      return step;
    }
    for (size_t i = 0; i < start.size(); ++i) {
      std::copy(start[i].begin(), start[i].end(), program->sites()[i].data);
    }
  }
  return 0;
}

// Applies the steps behind `first`, and compares the state with the last hash on the way.
Error Trainer::Impl::replay(JournalReader& reader, uint64_t first) {
  uint64_t checked = 0;
  Digest expected = {};
  for (reader.rewind(); reader.next(record);) {
    if (record.kind == RecordKind::State && record.step > first) {
      checked = record.step;
      expected = record.state;
    }
  }
  for (reader.rewind(); reader.next(record);) {
    if (record.kind != RecordKind::Step || record.step <= first) {
      continue;
    }
    PRGE_TRY(program->apply(record.g.data(), record.lr, settings.seed, record.step + 1));
    if (record.step == checked && !(program->masters_sha256() == expected)) {
      return fail(
          Error::InvalidExternalData,
          "the replay of step %llu gives another state than the run had. Hint: was it made on another processor?",
          static_cast<unsigned long long>(checked));
    }
  }
  return Error::Ok;
}

JournalHeader Trainer::Impl::header_of(const Rows& data) const {
  JournalHeader header;
  header.q = shape.q;
  header.batch_size = shape.batch_size;
  header.seed = settings.seed;
  header.steps = settings.steps;
  header.lr = settings.lr;
  header.eps = settings.eps;
  header.schedule = settings.schedule;
  if (settings.warmup != 0) {
    header.schedule += "+" + std::to_string(settings.warmup);
  }
  header.estimator = settings.estimator;
  header.num_examples = data.num_examples();
  header.rows_crc = data.fingerprint();
  header.program = manifest.identity();
  header.start = program->masters_sha256();
  return header;
}

Error Trainer::Impl::record_state() {
  // The copies of a dual state are not what its masters become after a replay.
  if (manifest.is_dual || state_at == steps_done) {
    return Error::Ok;
  }
  state_at = steps_done;
  Record state;
  state.kind = RecordKind::State;
  state.step = steps_done;
  state.state = program->masters_sha256();
  return journal.write(state);
}

Error Trainer::snapshot() {
  Impl& t = *impl_;
  if (!t.journal.is_open()) {
    return fail(Error::InvalidArgument, "a snapshot needs a run: call begin or resume first");
  }
  if (t.manifest.is_dual || t.state_at == t.steps_done) {
    return Error::Ok;
  }
  PRGE_TRY(t.flush());
  PRGE_TRY(t.record_state());
  return save_adapter(t.folder + kSnapshot, *t.program);
}

Error Trainer::finish() {
  Impl& t = *impl_;
  if (!t.journal.is_open()) {
    return fail(Error::InvalidArgument, "nothing to finish: call begin or resume first");
  }
  PRGE_TRY(t.flush());
  PRGE_TRY(t.record_state());
  PRGE_TRY(t.journal.sync());
  PRGE_TRY(save_adapter(t.folder + kAdapter, *t.program));
  t.journal.close();
  PRGE_TRY(rename_file(t.folder + kPartialJournal, t.folder + kJournal));
  remove_file(t.folder + kSnapshot);
  return Error::Ok;
}

// ---- adapters -------------------------------------------------------------------------------------------------------

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
