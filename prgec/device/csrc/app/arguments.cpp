#include "arguments.h"

#include <cerrno>
#include <cstdlib>

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
    "  --estimator NAME     norm, plain or std [norm]\n"
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

namespace {

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

} // namespace

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
  bad = options.program.empty()                              ? "PROGRAM is missing"
      : options.rows.empty()                                 ? "--rows is missing"
      : options.out.empty()                                  ? "--out is missing"
      : options.eval_every != 0 && options.eval_rows.empty() ? "--eval-every needs --eval-rows"
                                                             : nullptr;
  return bad == nullptr;
}
