#include "arguments.h"

#include <vector>

#include "flags.h"

const char kUsage[] =
    "Usage: prge_train PROGRAM --rows FILE --out DIR [options]\n"
    "\n"
    "  --rows FILE          training rows made by prgec tokenize\n"
    "  --eval-rows FILE     rows to evaluate before and after\n"
    "  --out DIR            run folder: adapter.safetensors, journal.bin, metrics.jsonl\n"
    "  --steps N            training steps [1000]\n"
    "  --lr X               learning rate [the program's: 0.001 with AdamW, else 0.003]\n"
    "  --lr-schedule NAME   constant, linear or cosine [linear]\n"
    "  --warmup N           steps over which lr rises first [0]\n"
    "  --accumulate K       calls a step, whose gradients are averaged [1]\n"
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
    "  --packed-weights DIR where XNNPACK keeps weights as it wants them, or off: in memory [the user's cache]\n"
    "  --no-verify          do not compare the program with its checksums\n"
    "  --force              discard an unfinished run in --out\n";

namespace {

bool set_option(const std::string& name, const char* value, Options& options) {
  prge::Settings& s = options.settings;
  const std::vector<Flag> flags = {
      flag("--rows", options.rows),
      flag("--eval-rows", options.eval_rows),
      flag("--out", options.out),
      flag("--init-adapter", options.adapter),
      flag("--lr-schedule", s.schedule),
      flag("--estimator", s.estimator),
      flag("--steps", s.steps),
      flag("--warmup", s.warmup),
      flag("--accumulate", s.accumulate),
      flag("--lr", s.lr),
      flag("--eps", s.eps),
      flag("--seed", s.seed),
      flag("--over-limit", s.over_limit),
      flag("--not-finite", s.not_finite),
      flag("--max-g", s.max_g),
      flag("--diverged", s.diverged),
      flag("--window", s.window),
      flag("--packed-weights", s.packed_weights),
      flag("--eval-every", options.eval_every),
      flag("--snapshot-every", options.snapshot_every),
  };
  return set_value(flags, name, value);
}

const char* missing(const Options& options) {
  if (options.program.empty()) {
    return "PROGRAM is missing";
  }
  if (options.rows.empty()) {
    return "--rows is missing";
  }
  if (options.out.empty()) {
    return "--out is missing";
  }
  return options.eval_every != 0 && options.eval_rows.empty() ? "--eval-every needs --eval-rows" : nullptr;
}

} // namespace

bool parse(int argc, char** argv, Options& options, const char*& bad) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = bad = argv[i];
    if (word == "--resume") {
      options.resume = true;
    } else if (word == "--force") {
      options.force = true;
    } else if (word == "--no-verify") {
      options.settings.verify = false;
    } else if (word.rfind("--", 0) != 0 && options.program.empty()) {
      options.program = word;
    } else if (word.rfind("--", 0) != 0 || i + 1 == argc || !set_option(word, argv[++i], options)) {
      return false;
    }
  }
  options.settings.packed_weights = packed_weights_folder(options.settings.packed_weights);
  bad = missing(options);
  return bad == nullptr;
}
