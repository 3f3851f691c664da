// The inside of a Trainer: trainer.cpp trains and evaluates, run.cpp keeps the journal and resumes from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "divergence.h"
#include "files.h"
#include "journal.h"
#include "policy.h"
#include "prge/trainer.h"
#include "program.h"

namespace prge {

constexpr uint64_t kNever = ~0ull;

class Trainer::Impl {
 public:
  Impl(std::unique_ptr<Program> opened, const Settings& chosen)
      : program(std::move(opened)),
        manifest(program->manifest()),
        settings(chosen),
        estimator(chosen.estimator),
        divergence(chosen.diverged, chosen.window) {
    const auto q = static_cast<size_t>(manifest.q);
    pending.resize(q);
    zeros.resize(q);
    g.resize(q);
    record.losses.resize(2 * q);
    record.g.resize(q);
    rows.resize(static_cast<size_t>(manifest.num_rows()));
    shape = {
        static_cast<uint32_t>(manifest.q), static_cast<uint32_t>(manifest.batch_size),
        static_cast<uint32_t>(manifest.seq_len), static_cast<uint32_t>(manifest.num_labels),
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
  // Applies the steps behind `first` up to `last`, and compares the state with the last hash on the way.
  Error replay(JournalReader& reader, uint64_t first, uint64_t last);
  Error take(const std::string& path);
  Error go_back();
  Error record_state();

  std::unique_ptr<Program> program;
  const Manifest& manifest;
  Settings settings;
  Estimator estimator;
  Divergence divergence;
  std::vector<std::vector<float>> initial; // masters before the first step, where a run may go back
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
  FolderLock lock;
  JournalWriter journal;
  // Steps of the last records of these kinds.
  uint64_t evaluated_at = kNever, state_at = kNever;
};

} // namespace prge
