// prge_train: trains a .pte on a file of rows, with the flags of `prgec run`.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "fail.h"
#include "flags.h"
#include "metrics.h"
#include "prge/trainer.h"
#include "quiet.h"
#include "report.h"

namespace {

using prge::Error;

constexpr int kInterruptedCode = 130;

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL); // the second one ends the process
}

class Run {
 public:
  explicit Run(const Options& options) : options_(options) {}

  Error run() {
    PRGE_TRY(open());
    if (trainer_->steps_done() == 0 && eval_rows_ && !trainer_->is_evaluated()) {
      PRGE_TRY(evaluate());
    }
    const Error trained = train();
    if (trained != Error::Ok && trained != Error::InvalidState) {
      return trained;
    }
    const std::string failure = prge::last_error();
    is_interrupted = trained == Error::Ok && trainer_->steps_done() < options_.settings.steps;
    if (trained == Error::Ok && !is_interrupted && eval_rows_ && !trainer_->is_evaluated()) {
      PRGE_TRY(evaluate());
    }
    PRGE_TRY(finish());
    return trained == Error::Ok ? trained : prge::fail(trained, "%s", failure.c_str());
  }

  bool is_interrupted = false;

 private:
  Error open() {
    auto rows = prge::Rows::open(options_.rows);
    PRGE_TRY(rows.error());
    rows_ = std::move(*rows);
    if (!options_.eval_rows.empty()) {
      auto eval_rows = prge::Rows::open(options_.eval_rows);
      PRGE_TRY(eval_rows.error());
      eval_rows_ = std::move(*eval_rows);
    }
    auto trainer = prge::Trainer::open(options_.program, options_.settings);
    PRGE_TRY(trainer.error());
    trainer_ = std::move(*trainer);
    if (!options_.adapter.empty()) {
      PRGE_TRY(trainer_->load_adapter(options_.adapter));
    }
    if (!options_.resume) {
      return trainer_->begin(*rows_, options_.out, options_.force);
    }
    const auto done = trainer_->resume(*rows_, options_.out);
    PRGE_TRY(done.error());
    std::fprintf(stderr, "resuming after step %llu\n", static_cast<unsigned long long>(*done));
    return between_steps();
  }

  Error train() {
    const uint32_t size = trainer_->shape().batch_size * options_.settings.accumulate;
    prge::Order order(rows_->num_examples(), size, options_.settings.seed);
    std::vector<prge::Row> batch(size);
    const uint64_t steps = options_.settings.steps;
    const uint64_t report_every = steps < 10 ? 1 : steps / 10;
    while (trainer_->steps_done() < steps && !stop_requested) {
      const auto& examples = order.step(trainer_->steps_done() + 1);
      for (size_t b = 0; b < batch.size(); ++b) {
        batch[b] = rows_->right_row(examples[b]);
      }
      const auto result = trainer_->step(batch);
      PRGE_TRY(result.error());
      if (result->step == 1 || result->step % report_every == 0) {
        std::fprintf(
            stderr, "step %llu/%llu  loss %.4f  lr %.2e\n", static_cast<unsigned long long>(result->step),
            static_cast<unsigned long long>(steps), result->loss, result->lr);
      }
      PRGE_TRY(between_steps());
    }
    return Error::Ok;
  }

  // Evaluates and keeps a snapshot where they are due.
  Error between_steps() {
    const uint64_t step = trainer_->steps_done();
    if (step == 0 || step == options_.settings.steps || stop_requested) {
      return Error::Ok;
    }
    if (options_.eval_every != 0 && step % options_.eval_every == 0 && !trainer_->is_evaluated()) {
      PRGE_TRY(evaluate());
    }
    const bool is_due = options_.snapshot_every != 0 && step % options_.snapshot_every == 0;
    return is_due ? trainer_->snapshot() : Error::Ok;
  }

  Error evaluate() {
    const auto result = trainer_->evaluate(*eval_rows_);
    PRGE_TRY(result.error());
    const auto step = static_cast<unsigned long long>(trainer_->steps_done());
    std::fprintf(stderr, "step %llu: evaluation loss %.4f", step, result->loss);
    if (std::isnan(result->accuracy)) {
      std::fputs("\n", stderr);
    } else {
      std::fprintf(stderr, "  accuracy %.1f%%\n", 100 * result->accuracy);
    }
    return Error::Ok;
  }

  Error finish() {
    // The journal gets its name last of all: a run that has it is whole.
    PRGE_TRY(prge::write_metrics(options_.out + "/journal.partial.bin", options_.out + "/metrics.jsonl"));
    PRGE_TRY(trainer_->finish());
    const auto state = trainer_->state_sha256();
    PRGE_TRY(state.error());
    std::printf(
        "steps %llu  state sha256 %s  run folder %s\n", static_cast<unsigned long long>(trainer_->steps_done()),
        state->c_str(), options_.out.c_str());
    return Error::Ok;
  }

  const Options& options_;
  std::unique_ptr<prge::Rows> rows_, eval_rows_;
  std::unique_ptr<prge::Trainer> trainer_;
};

} // namespace

int main(int argc, char** argv) {
  if (asks_for_help(argc, argv)) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  Options options;
  const char* bad = nullptr;
  if (!parse(argc, argv, options, bad)) {
    std::fprintf(stderr, "error: wrong usage: %s (see prge_train --help)\n", bad == nullptr ? "" : bad);
    return kUsageCode;
  }
  options.settings.warn = warn;
  quiet_executorch();
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  Run run(options);
  if (const Error error = run.run(); error != Error::Ok) {
    return report(error);
  }
  return run.is_interrupted ? kInterruptedCode : 0;
}
