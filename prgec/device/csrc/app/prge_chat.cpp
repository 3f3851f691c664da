// prge_chat: continues prompts of token ids, and writes ids.
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "fail.h"
#include "flags.h"
#include "prge/generator.h"
#include "quiet.h"
#include "report.h"

namespace {

using prge::Error;

constexpr char kUsage[] =
    "Usage: prge_chat PROGRAM [options] < prompts\n"
    "\n"
    "Each line of stdin is a prompt, token ids with spaces between; its answer is a line of stdout, ids as they come.\n"
    "A prompt that begins as the text before it is read from where it differs.\n"
    "\n"
    "  --adapter FILE       adapter.safetensors of a run; the untrained program without it\n"
    "  --max-tokens N       most tokens of an answer [128]\n"
    "  --end ID             a token that ends an answer; repeat for more [the one of the program's tokenizer]\n"
    "  --temperature X      0: the most likely token always [0]\n"
    "  --top-k K            draw among the K most likely tokens, 0: all [0]\n"
    "  --top-p P            draw among tokens of this probability [1]\n"
    "  --seed N             of the draws [0]\n"
    "  --packed-weights DIR where XNNPACK keeps weights as it wants them, or off: in memory [the user's cache]\n"
    "  --no-verify          do not compare the program with its checksums\n";

struct Options {
  std::string program, adapter;
  prge::Opening opening;
  prge::Sampling sampling;
  prge::Limits limits;
};

bool parse(int argc, char** argv, Options& options, const char*& bad) {
  const std::vector<Flag> flags = {
      flag("--adapter", options.adapter),      flag("--max-tokens", options.limits.max_tokens),
      flag("--end", options.limits.ends),      flag("--temperature", options.sampling.temperature),
      flag("--top-k", options.sampling.top_k), flag("--top-p", options.sampling.top_p),
      flag("--seed", options.sampling.seed),   flag("--packed-weights", options.opening.packed_weights),
  };
  for (int i = 1; i < argc; ++i) {
    const std::string word = bad = argv[i];
    if (word == "--no-verify") {
      options.opening.verify = false;
    } else if (word.rfind("--", 0) != 0 && options.program.empty()) {
      options.program = word;
    } else if (word.rfind("--", 0) != 0 || i + 1 == argc || !set_value(flags, word, argv[++i])) {
      return false;
    }
  }
  options.opening.packed_weights = packed_weights_folder(options.opening.packed_weights);
  bad = options.program.empty() ? "PROGRAM is missing" : options.limits.max_tokens == 0 ? "--max-tokens" : nullptr;
  return bad == nullptr;
}

// Only digits make an id: a sign or a letter is somebody's mistake.
bool parse_ids(const std::string& line, std::vector<uint32_t>& out) {
  out.clear();
  const char* at = line.c_str();
  while (true) {
    at += std::strspn(at, " \t\r");
    if (*at == '\0') {
      return at == line.c_str() + line.size();
    }
    const size_t digits = std::strspn(at, "0123456789");
    uint32_t id = 0;
    if (digits == 0 || !parse_value(std::string(at, digits).c_str(), id)) {
      return false;
    }
    out.push_back(id);
    at += digits;
    if (*at != '\0' && std::strchr(" \t\r", *at) == nullptr) {
      return false;
    }
  }
}

// Answers a line, a token at a time: tokens already written stay, even if an error follows.
Error answer(prge::Generator& generator, const prge::Limits& limits, const std::string& line) {
  std::vector<uint32_t> prompt;
  if (!parse_ids(line, prompt)) {
    return prge::fail(Error::InvalidExternalData, "a prompt is token ids with spaces between");
  }
  const char* between = "";
  const auto answered = generator.answer(prompt, limits, [&between](uint32_t token) {
    std::printf("%s%u", between, token);
    std::fflush(stdout);
    between = " ";
    return true;
  });
  if (answered.ok() || *between != '\0') {
    std::printf("\n");
    std::fflush(stdout);
  }
  PRGE_TRY(answered.error());
  if (answered->end == prge::End::Full) {
    std::fprintf(stderr, "the program's cache of %u tokens is full: the answer ends here\n", generator.context());
  }
  return Error::Ok;
}

Error run(Options& options) {
  const auto opened = prge::Generator::open(options.program, options.opening);
  PRGE_TRY(opened.error());
  prge::Generator& generator = **opened;
  PRGE_TRY(generator.sample(options.sampling));
  if (!options.adapter.empty()) {
    PRGE_TRY(generator.load_adapter(options.adapter));
  }
  if (options.limits.ends.empty() && generator.eos_id()) {
    options.limits.ends.push_back(*generator.eos_id());
  }
  std::string line;
  for (size_t number = 1; std::getline(std::cin, line); ++number) {
    if (const Error error = answer(generator, options.limits, line); error != Error::Ok) {
      const std::string what = prge::last_error();
      return prge::fail(error, "line %zu: %s", number, what.c_str());
    }
  }
  return Error::Ok;
}

} // namespace

int main(int argc, char** argv) {
  if (asks_for_help(argc, argv)) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  Options options;
  const char* bad = nullptr;
  if (!parse(argc, argv, options, bad)) {
    std::fprintf(stderr, "error: wrong usage: %s (see prge_chat --help)\n", bad);
    return kUsageCode;
  }
  options.opening.warn = warn;
  quiet_executorch();
  const Error error = run(options);
  return error == Error::Ok ? 0 : report(error);
}
