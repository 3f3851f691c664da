// A run in a folder: its journal, its snapshots, and the way back to where it stopped.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "adapter.h"
#include "fail.h"
#include "limits.h"
#include "policy.h"
#include "trainer_impl.h"

namespace prge {

namespace {

constexpr char kJournal[] = "/journal.bin";
constexpr char kPartialJournal[] = "/journal.partial.bin";
constexpr char kSnapshot[] = "/snapshot.safetensors";
constexpr char kAdapter[] = "/adapter.safetensors";

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
      {!(a.start == b.start), "the adapter to start from"},
      {a.max_g != b.max_g, "--max-g"},
      {a.policies != b.policies, "--over-limit or --not-finite"}};
  for (const auto& [is_other, name] : fields) {
    if (is_other) {
      return name;
    }
  }
  return nullptr;
}

} // namespace

Error Trainer::begin(const Rows& rows, const std::string& folder, bool discard) {
  Impl& t = *impl_;
  PRGE_TRY(t.check_fit(rows));
  PRGE_TRY(t.take(folder));
  const std::string path = folder + kPartialJournal;
  if (!discard && is_file(path)) {
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
  return t.journal.create(path, t.header_of(rows));
}

Result<uint64_t> Trainer::resume(const Rows& rows, const std::string& folder) {
  Impl& t = *impl_;
  PRGE_TRY(t.take(folder));
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
        Error::InvalidArgument,
        "%s differs from the run to resume (%s). Hint: resume with the flags it was started with", what, path.c_str());
  }
  return t.take_up(path, **reader);
}

// Takes hold of a folder, with what a run needs to go back to a step of its own.
Error Trainer::Impl::take(const std::string& path) {
  PRGE_TRY(make_folder(path));
  PRGE_TRY(lock.take(path));
  folder = path;
  initial.clear();
  for (const SiteState& site : program->sites()) {
    if (settings.diverged != 0 && !manifest.is_dual) {
      initial.emplace_back(site.data, site.data + site.numel());
    }
  }
  return Error::Ok;
}

// Gives a run that diverged the best state it had.
Error Trainer::Impl::go_back() {
  if (manifest.is_dual || manifest.returns_state) {
    warn("this program's state cannot be replayed: kept the last one");
    return Error::Ok;
  }
  for (size_t i = 0; i < initial.size(); ++i) {
    std::copy(initial[i].begin(), initial[i].end(), program->sites()[i].data);
  }
  auto reader = JournalReader::open(folder + kPartialJournal);
  PRGE_TRY(reader.error());
  const uint64_t step = divergence.best_step();
  PRGE_TRY(replay(**reader, 0, step));
  char line[128];
  snprintf(
      line, sizeof(line), "kept the state of step %llu, the end of the %llu steps with the lowest losses",
      static_cast<unsigned long long>(step), static_cast<unsigned long long>(settings.window));
  warn(line);
  return Error::Ok;
}

Result<uint64_t> Trainer::Impl::take_up(const std::string& path, JournalReader& reader) {
  const std::string partial = folder + kPartialJournal;
  steps_done = 0;
  for (reader.rewind(); reader.next(record);) {
    if (record.kind == RecordKind::Step) {
      ++steps_done;
      divergence.hear(ordered_mean(record.losses.data(), record.losses.size()));
      estimator.coefficients(record.losses.data(), manifest.q, record.eps, g.data());
    }
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
    snprintf(
        line, sizeof(line), "the last %llu bytes of the journal are damaged: going on after step %llu",
        static_cast<unsigned long long>(reader.size() - good_bytes), static_cast<unsigned long long>(steps_done));
    warn(line);
  }
  PRGE_TRY(replay(reader, load_snapshot(reader), steps_done));
  if (path != partial) {
    PRGE_TRY(rename_file(path, partial));
  }
  PRGE_TRY(journal.append_to(partial, good_bytes));
  return steps_done;
}

// Loads the snapshot whose hash the journal has and returns its step; 0 where there is none. A snapshot that is damaged
// or of another run costs time, not the run.
uint64_t Trainer::Impl::load_snapshot(JournalReader& reader) {
  if (manifest.returns_state) {
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

Error Trainer::Impl::replay(JournalReader& reader, uint64_t first, uint64_t last) {
  uint64_t checked = 0;
  Digest expected = {};
  for (reader.rewind(); reader.next(record);) {
    if (record.kind == RecordKind::State && record.step > first && record.step <= last) {
      checked = record.step;
      expected = record.state;
    }
  }
  for (reader.rewind(); reader.next(record);) {
    if (record.kind != RecordKind::Step || record.step <= first || record.step > last) {
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
  header.max_g = settings.max_g;
  header.policies = policy_flags(settings);
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
  if (t.divergence.is_over()) {
    PRGE_TRY(t.go_back());
  }
  PRGE_TRY(save_adapter(t.folder + kAdapter, *t.program));
  t.journal.close();
  PRGE_TRY(rename_file(t.folder + kPartialJournal, t.folder + kJournal));
  remove_file(t.folder + kSnapshot);
  t.lock.release();
  return Error::Ok;
}

} // namespace prge
