// prge_train: trains a .pte on a file of rows, with the flags of `prgec run`.
#include <executorch/runtime/platform/platform.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fail.h"
#include "metrics.h"
#include "prge/trainer.h"

namespace {

using prge::Error;

const char kUsage[] =
    "Usage: prge_train PROGRAM --rows FILE --out DIR [options]\n"
    "\n"
    "  --rows FILE          training rows made by prgec tokenize\n"
    "  --eval-rows FILE     rows to evaluate before and after\n"
    "  --out DIR            run folder: adapter.safetensors, journal.bin, metrics.jsonl\n"
    "  --steps N            training steps [1000]\n"
    "  --lr X               learning rate [0.003]\n"
    "  --lr-schedule NAME   constant, linear or cosine [linear]\n"
    "  --warmup N           steps over which lr rises first [0]\n"
    "  --eps X              perturbation scale [0.01]\n"
    "  --seed N             key of noise and data order [0]\n"
    "  --estimator NAME     plain, norm or std [plain]\n"
    "  --eval-every N       also evaluate every N steps\n"
    "  --snapshot-every N   keep the state every N steps, 0 for never [100]\n"
    "  --init-adapter FILE  start from this adapter\n"
    "  --resume             go on with the run in --out\n"
    "  --max-g X            largest coefficient |g| a step may apply, 0 for any [0]\n"
    "  --over-limit NAME    what becomes of a step with a larger one, clip or skip [clip]\n"
    "  --not-finite NAME    what a loss or g that is not finite does, stop the run or skip the step [stop]\n"
    "  --diverged X         end with the best state when the mean loss is X times what it was at first, 0: never [0]\n"
    "  --window N           steps that mean is taken over [50]\n"
    "  --force              discard an unfinished run in --out\n";

struct Options {
  std::string program, rows, eval_rows, out, adapter;
  uint64_t eval_every = 0, snapshot_every = 100;
  bool resume = false, force = false;
  prge::Settings settings;
};

constexpr int kUsageCode = 2;
constexpr int kInterruptedCode = 130;

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL); // the second one ends the process
}

bool is_debug() {
  const char* value = std::getenv("PRGEC_DEBUG");
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

// ExecuTorch's own lines are for those who ask; a user gets one line.
void log_line(et_timestamp_t, et_pal_log_level_t, const char*, const char*, size_t, const char* text, size_t) {
  if (is_debug()) {
    std::fprintf(stderr, "executorch: %s\n", text);
  }
}

void warn(const char* line) {
  std::fprintf(stderr, "warning: %s\n", line);
}

// Exit codes are those of prgec.
int report(Error error) {
  std::fprintf(stderr, "error: %s\n", prge::last_error());
  switch (error) {
    case Error::InvalidArgument:
      return kUsageCode;
    case Error::InvalidExternalData:
      return 4;
    case Error::InvalidProgram:
      return 5;
    case Error::InvalidState:
      return 8;
    default:
      return 1;
  }
}

bool parse_number(const char* text, double& out) {
  char* end = nullptr;
  out = std::strtod(text, &end);
  return end != text && *end == '\0';
}

bool parse_number(const char* text, int64_t& out) {
  char* end = nullptr;
  errno = 0;
  out = std::strtoll(text, &end, 10);
  return end != text && *end == '\0' && errno == 0;
}

bool parse_number(const char* text, uint64_t& out) {
  int64_t value = 0;
  const bool is_good = parse_number(text, value) && value >= 0;
  out = static_cast<uint64_t>(value);
  return is_good;
}

// Returns false, with the flag at fault in `bad`, where the arguments make no sense.
bool parse(int argc, char** argv, Options& options, const char*& bad) {
  prge::Settings& s = options.settings;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = bad = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (flag == "--resume") {
      options.resume = true;
      continue;
    }
    if (flag == "--force") {
      options.force = true;
      continue;
    }
    if (flag.rfind("--", 0) != 0) {
      if (!options.program.empty()) {
        return false;
      }
      options.program = flag;
      continue;
    }
    if (value == nullptr) {
      return false;
    }
    ++i;
    const bool is_good = flag == "--rows" ? (options.rows = value, true)
        : flag == "--eval-rows"           ? (options.eval_rows = value, true)
        : flag == "--out"                 ? (options.out = value, true)
        : flag == "--init-adapter"        ? (options.adapter = value, true)
        : flag == "--lr-schedule"         ? (s.schedule = value, true)
        : flag == "--estimator"           ? (s.estimator = value, true)
        : flag == "--steps"               ? parse_number(value, s.steps)
        : flag == "--warmup"              ? parse_number(value, s.warmup)
        : flag == "--lr"                  ? parse_number(value, s.lr)
        : flag == "--eps"                 ? parse_number(value, s.eps)
        : flag == "--seed"                ? parse_number(value, s.seed)
        : flag == "--over-limit"          ? (s.over_limit = value, true)
        : flag == "--not-finite"          ? (s.not_finite = value, true)
        : flag == "--max-g"               ? parse_number(value, s.max_g)
        : flag == "--diverged"            ? parse_number(value, s.diverged)
        : flag == "--window"              ? parse_number(value, s.window)
        : flag == "--eval-every"          ? parse_number(value, options.eval_every)
        : flag == "--snapshot-every"      ? parse_number(value, options.snapshot_every)
                                          : false;
    if (!is_good) {
      return false;
    }
  }
  bad = options.program.empty() ? "PROGRAM is missing"
      : options.rows.empty()    ? "--rows is missing"
      : options.out.empty()     ? "--out is missing"
      : options.eval_every != 0 && options.eval_rows.empty() ? "--eval-every needs --eval-rows"
                                                             : nullptr;
  return bad == nullptr;
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
      PRGE_TRY(trainer_->load(options_.adapter));
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
    prge::Order order(rows_->num_examples(), trainer_->shape().batch_size, options_.settings.seed);
    std::vector<prge::Row> batch(trainer_->shape().batch_size);
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
  if (argc == 2 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0)) {
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
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(log_line, __FILE__));
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  Run run(options);
  if (const Error error = run.run(); error != Error::Ok) {
    return report(error);
  }
  return run.is_interrupted ? kInterruptedCode : 0;
}
