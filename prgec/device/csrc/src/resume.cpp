// The way back to a step of a run: from its journal, and a snapshot that spares most of the replay.
#include <cstdio>
#include <optional>
#include <utility>

#include "adapter.h"
#include "fail.h"
#include "policy.h"
#include "trainer_impl.h"

namespace prge {

namespace {

// Finds what differs between two runs, in the words of prge_train's flags; null where nothing does.
const char* difference(const JournalHeader& a, const JournalHeader& b, bool has_gradients) {
  const std::pair<bool, const char*> fields[] = {
      {a.q != b.q, "the program's q"},
      {a.batch_size != b.batch_size, "the program's batch size or --accumulate"},
      {a.seed != b.seed, "--seed"},
      {a.steps != b.steps, "--steps"},
      {a.lr != b.lr, "--lr"},
      {a.schedule != b.schedule, "--lr-schedule or --warmup"},
      {a.estimator != b.estimator, has_gradients ? "the program's optimizer" : "--estimator"},
      {a.num_examples != b.num_examples, "the number of examples"},
      {a.rows_crc != b.rows_crc, "the data"},
      {!(a.program == b.program), "the program"},
      {a.eps != b.eps, "--eps"},
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

// Length of a journal up to the state after `step` steps; before the first step for 0.
uint64_t length_until(JournalReader& reader, uint64_t step) {
  uint64_t length = kJournalHeaderBytes;
  Record record;
  for (reader.rewind(); reader.next(record) && (step != 0 || record.kind != RecordKind::Step);) {
    length = reader.place();
    if (step != 0 && record.kind == RecordKind::State && record.step == step) {
      break;
    }
  }
  return length;
}

// Whether the run had this state after `step` steps.
bool has_state(JournalReader& reader, uint64_t step, const Digest& state) {
  bool is_found = false;
  Record record;
  for (reader.rewind(); reader.next(record);) {
    is_found = is_found || (record.kind == RecordKind::State && record.step == step && record.state == state);
  }
  return is_found;
}

} // namespace

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
  PRGE_TRY(t.check_training(rows));
  if (t.manifest.is_dual) {
    return fail(Error::InvalidArgument, "a program with dual state keeps its noise in memory: it cannot be resumed");
  }
  auto reader = JournalReader::open(path);
  PRGE_TRY(reader.error());
  if (const char* what = difference((*reader)->header(), t.header_of(rows), t.manifest.has_gradients);
      what != nullptr) {
    return fail(
        Error::InvalidArgument,
        "%s differs from the run to resume (%s). Hint: resume with the program and the flags it was started with", what,
        path.c_str());
  }
  return t.take_up(path, **reader);
}

Result<uint64_t> Trainer::Impl::take_up(const std::string& path, JournalReader& reader) {
  const std::string partial = folder + kPartialJournal;
  uint64_t done = 0;
  for (reader.rewind(); reader.next(record);) {
    done += record.kind == RecordKind::Step;
  }
  uint64_t good_bytes = reader.place();
  if (path != partial && done >= settings.steps) {
    return fail(Error::InvalidArgument, "the run is complete: all its steps are done (%s)", folder.c_str());
  }
  warn_of_damage(reader, good_bytes, done);
  if (method->can_replay()) {
    observe(reader, good_bytes);
    PRGE_TRY(replay(reader, load_snapshot(reader), done));
  } else {
    PRGE_TRY(program->make_room()); // first, since it takes a step and then forgets it
    good_bytes = back_to_snapshot(reader, done);
    observe(reader, good_bytes);
  }
  if (path != partial) {
    PRGE_TRY(rename_file(path, partial));
  }
  PRGE_TRY(journal.append_to(partial, good_bytes));
  return steps_done;
}

void Trainer::Impl::warn_of_damage(const JournalReader& reader, uint64_t good_bytes, uint64_t done) const {
  if (good_bytes != reader.size()) {
    char line[128];
    snprintf(
        line, sizeof(line), "the last %llu bytes of the journal are damaged: going on after step %llu",
        static_cast<unsigned long long>(reader.size() - good_bytes), static_cast<unsigned long long>(done));
    warn(line);
  }
}

void Trainer::Impl::observe(JournalReader& reader, uint64_t good_bytes) {
  steps_done = 0;
  for (reader.rewind(); reader.place() < good_bytes && reader.next(record);) {
    if (record.kind == RecordKind::Step) {
      ++steps_done;
      divergence.observe(ordered_mean(record.losses.data(), record.losses.size()));
      method->observe(record);
    }
    if (record.kind == RecordKind::Evaluation) {
      evaluated_at = record.step;
    } else if (record.kind == RecordKind::State) {
      state_at = record.step;
    }
  }
}

// Brings a program whose steps cannot be replayed to its last snapshot; returns the length of the journal up to there,
// or up to its first step where there is none. The later steps are taken again, and come out the same.
uint64_t Trainer::Impl::back_to_snapshot(JournalReader& reader, uint64_t done) {
  const auto start = program->state();
  uint64_t step = 0;
  if (is_file(folder + kSnapshot)) {
    const auto taken = load_snapshot_file(folder + kSnapshot, *program);
    if (!taken.ok()) {
      warn(last_error());
    } else if (has_state(reader, *taken, program->masters_sha256())) {
      step = *taken;
    }
    if (step == 0) {
      program->set_state(start);
    }
  }
  if (step < done) {
    char line[96];
    snprintf(
        line, sizeof(line), "taking steps %llu to %llu again, from the last snapshot",
        static_cast<unsigned long long>(step + 1), static_cast<unsigned long long>(done));
    warn(line);
  }
  return length_until(reader, step);
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
    const auto start = program->state();
    if (prge::load_adapter(folder + name, *program) != Error::Ok) {
      warn(last_error());
      continue;
    }
    if (const auto step = step_of(program->masters_sha256(), reader); step.has_value()) {
      return *step;
    }
    program->set_state(start);
  }
  return 0;
}

// Last step after which the run had this state.
std::optional<uint64_t> Trainer::Impl::step_of(const Digest& state, JournalReader& reader) {
  std::optional<uint64_t> step;
  for (reader.rewind(); reader.next(record);) {
    if (record.kind == RecordKind::State && record.state == state) {
      step = record.step;
    }
  }
  return step;
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
    PRGE_TRY(method->replay(record));
    if (record.step == checked && !(program->masters_sha256() == expected)) {
      return fail(
          Error::InvalidExternalData,
          "the replay of step %llu gives another state than the run had. Hint: was it made on another processor?",
          static_cast<unsigned long long>(checked));
    }
  }
  return Error::Ok;
}

// Gives a run that diverged the best state it had.
Error Trainer::Impl::go_back() {
  if (!method->can_replay() || manifest.returns_state) {
    warn("this program's state cannot be replayed: kept the last one");
    return Error::Ok;
  }
  program->set_state(initial);
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

} // namespace prge
