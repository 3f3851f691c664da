// The inside of a Trainer: trainer.cpp trains, evaluation.cpp scores, run.cpp keeps a journal, resume.cpp goes on from
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choices.h"
#include "divergence.h"
#include "files.h"
#include "journal_reader.h"
#include "journal_writer.h"
#include "prge/trainer.h"
#include "program.h"
#include "steps.h"

namespace prge {

constexpr uint64_t kNever = ~0ull;

// Files of a run folder.
constexpr char kJournal[] = "/journal.bin";
constexpr char kPartialJournal[] = "/journal.partial.bin";
constexpr char kSnapshot[] = "/snapshot.safetensors";
constexpr char kAdapter[] = "/adapter.safetensors";

class Trainer::Impl {
 public:
  Impl(std::unique_ptr<Program> opened, const Settings& settings, const Choices& choices);

  void warn(const char* line) const;

  // fit.cpp
  uint32_t rows_per_step() const {
    return shape.batch_size * settings.accumulate;
  }
  Error check_batch(const std::vector<Row>& batch) const;
  Error check_fit(const Rows& data) const;
  // The same of rows to train on, which the program must weigh as they say.
  Error check_training(const Rows& data) const;

  // At the start of the run.
  double rate() const {
    return settings.lr.value_or(manifest.lr);
  }

  // trainer.cpp: forgets the steps of an earlier run; the weights stay.
  void start_over();
  // Gives the program these rows, over and over.
  void fill(const Row* distinct, size_t count);
  void warn_of_flatness() const;

  // evaluation.cpp
  Error score(const Rows& data, std::vector<double>& losses);

  // run.cpp
  JournalHeader header_of(const Rows& data) const;
  Error take(const std::string& path);
  Error record_state();

  // resume.cpp
  Result<uint64_t> take_up(const std::string& path, JournalReader& reader);
  void warn_of_damage(const JournalReader& reader, uint64_t good_bytes, uint64_t done) const;
  // Takes note of the records in the first `good_bytes` bytes, as if their steps had just been made.
  void observe(JournalReader& reader, uint64_t good_bytes);
  uint64_t load_snapshot(JournalReader& reader);
  uint64_t back_to_snapshot(JournalReader& reader, uint64_t done);
  std::optional<uint64_t> step_of(const Digest& state, JournalReader& reader);
  // Applies the steps after `first` up to `last`, and compares the state with the last hash on the way.
  Error replay(JournalReader& reader, uint64_t first, uint64_t last);
  Error go_back();

  std::unique_ptr<Program> program;
  const Manifest& manifest;
  Settings settings;
  Choices choices;
  std::unique_ptr<Steps> method;
  Divergence divergence;
  State initial; // before the first step, where a run may go back
  Shape shape;
  uint64_t steps_done = 0;
  Record record;
  std::vector<Row> rows; // of one forward call
  std::string folder;
  FolderLock lock;
  JournalWriter journal;
  // Steps of the last records of these kinds.
  uint64_t evaluated_at = kNever, state_at = kNever;
};

} // namespace prge
