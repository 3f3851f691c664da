// A run in a folder: its journal, its snapshots, its end.
#include <string>

#include "adapter.h"
#include "fail.h"
#include "trainer_impl.h"

namespace prge {

Error Trainer::begin(const Rows& rows, const std::string& folder, bool discard) {
  Impl& t = *impl_;
  PRGE_TRY(t.check_training(rows));
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

// Takes hold of a folder, with what a run needs to go back to a step of its own.
Error Trainer::Impl::take(const std::string& path) {
  PRGE_TRY(make_folder(path));
  PRGE_TRY(lock.take(path));
  folder = path;
  if (settings.diverged != 0 && !manifest.is_dual) {
    initial = program->state();
  }
  return Error::Ok;
}

JournalHeader Trainer::Impl::header_of(const Rows& data) const {
  JournalHeader header;
  header.q = shape.q;
  header.batch_size = rows_per_step();
  header.seed = settings.seed;
  header.steps = settings.steps;
  header.lr = rate();
  header.schedule = settings.schedule;
  if (settings.warmup != 0) {
    header.schedule += "+" + std::to_string(settings.warmup);
  }
  header.num_examples = data.num_examples();
  header.rows_crc = data.fingerprint();
  header.program = manifest.identity();
  header.start = program->masters_sha256();
  method->describe(header);
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
  PRGE_TRY(t.method->flush());
  PRGE_TRY(t.record_state());
  return save_snapshot(t.folder + kSnapshot, *t.program, t.steps_done);
}

Error Trainer::finish() {
  Impl& t = *impl_;
  if (!t.journal.is_open()) {
    return fail(Error::InvalidArgument, "nothing to finish: call begin or resume first");
  }
  PRGE_TRY(t.method->flush());
  // No replay brings back where it can go on.
  const bool needs_snapshot = t.manifest.has_gradients && t.steps_done < t.settings.steps;
  PRGE_TRY(needs_snapshot ? snapshot() : t.record_state());
  PRGE_TRY(t.journal.sync());
  if (t.divergence.is_over()) {
    PRGE_TRY(t.go_back());
  }
  PRGE_TRY(save_adapter(t.folder + kAdapter, *t.program));
  t.journal.close();
  PRGE_TRY(rename_file(t.folder + kPartialJournal, t.folder + kJournal));
  if (!needs_snapshot) {
    remove_file(t.folder + kSnapshot);
  }
  t.lock.release();
  return Error::Ok;
}

} // namespace prge
