// The command line of prge_train: the flags of `prgec run` that a program and a file of rows need.
#pragma once

#include <cstdint>
#include <string>

#include "prge/trainer.h"

extern const char kUsage[];

struct Options {
  std::string program, rows, eval_rows, out, adapter;
  uint64_t eval_every = 0, snapshot_every = 100;
  bool resume = false, force = false;
  prge::Settings settings;
};

// Returns false, with the flag at fault in `bad`, where the arguments make no sense.
bool parse(int argc, char** argv, Options& options, const char*& bad);
