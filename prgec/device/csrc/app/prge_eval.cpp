// prge_eval: scores adapters, one after another, under a program that is loaded once.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fail.h"
#include "json.h"
#include "prge/trainer.h"
#include "quiet.h"
#include "report.h"

namespace {

using prge::Error;
using Clock = std::chrono::steady_clock;

const char kUsage[] =
    "Usage: prge_eval PROGRAM --rows FILE [--adapter FILE]...\n"
    "\n"
    "  --rows FILE      rows made by prgec tokenize\n"
    "  --adapter FILE   adapter.safetensors of a run; repeat for more, the untrained program without any\n"
    "  --no-verify      do not compare the program with its checksums\n"
    "\n"
    "One line of JSON for each: its scores, and the milliseconds it took to put into the program.\n";

struct Options {
  std::string program, rows;
  std::vector<std::string> adapters;
  prge::Settings settings;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--no-verify") {
      options.settings.verify = false;
    } else if (word == "--rows" && i + 1 < argc) {
      options.rows = argv[++i];
    } else if (word == "--adapter" && i + 1 < argc) {
      options.adapters.push_back(argv[++i]);
    } else if (word.rfind("--", 0) != 0 && options.program.empty()) {
      options.program = word;
    } else {
      return false;
    }
  }
  return !options.program.empty() && !options.rows.empty();
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Error score(prge::Trainer& trainer, const prge::Rows& rows, const char* adapter, double swap_ms) {
  const auto found = trainer.evaluate(rows);
  PRGE_TRY(found.error());
  std::string name;
  prge::append_quoted(name, adapter);
  const std::string accuracy = std::isfinite(found->accuracy) ? std::to_string(found->accuracy) : "null";
  std::printf(
      "{\"adapter\": %s, \"loss\": %.17g, \"accuracy\": %s, \"num_examples\": %llu, \"swap_ms\": %.3f}\n", name.c_str(),
      found->loss, accuracy.c_str(), static_cast<unsigned long long>(found->num_examples), swap_ms);
  return Error::Ok;
}

Error run(const Options& options) {
  auto rows = prge::Rows::open(options.rows);
  PRGE_TRY(rows.error());
  const auto start = Clock::now();
  auto trainer = prge::Trainer::open(options.program, options.settings);
  PRGE_TRY(trainer.error());
  std::fprintf(stderr, "loaded in %.1f ms\n", milliseconds_since(start));
  if (options.adapters.empty()) {
    return score(**trainer, **rows, "", 0.0);
  }
  for (const std::string& adapter : options.adapters) {
    const auto before = Clock::now();
    PRGE_TRY((*trainer)->load_adapter(adapter));
    PRGE_TRY(score(**trainer, **rows, adapter.c_str(), milliseconds_since(before)));
  }
  return Error::Ok;
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::printf("%s", kUsage);
    return 0;
  }
  quiet_executorch();
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "error: a flag is unknown or lacks its value, or PROGRAM or --rows is missing\n%s", kUsage);
    return kUsageCode;
  }
  const Error error = run(options);
  return error == Error::Ok ? 0 : report(error);
}
