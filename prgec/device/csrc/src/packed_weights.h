// Weights as XNNPACK packs them, in a file that is mapped: they take no memory of their own, and are packed once.
//
// XNNPACK reads back what it finds in such a file without a check of the data. So each has a seal beside it, with size
// and checksum, written once the file is whole; without a good one the weights are packed anew. The seal is also what a
// process locks, for as long as it uses the file.
#pragma once

#include <cstdint>
#include <string>

#include "files.h"
#include "prge/error.h"

namespace prge {

// Suffixes of the two files.
constexpr const char* kWeightsSuffix = ".xnn";
constexpr const char* kSealSuffix = ".seal";

class PackedWeights {
 public:
  explicit PackedWeights(void (*warn)(const char* line)) : warn_(warn) {}

  // Prepares the file for a program: whole and sealed, or not there yet. Where there can be none, memory is used, and
  // `warn` receives the reason. `base` stands for the weights, which are too many to be hashed.
  void open(const std::string& folder, const std::string& program, const std::string& base);
  // Once XNNPACK has packed everything, or more.
  void seal();

  // Path of the file; empty where memory is used.
  const std::string& path() const {
    return path_;
  }

 private:
  Error take(const std::string& folder, const std::string& program, const std::string& base);
  Error drop_if_damaged();
  Error try_seal();
  void warn(const char* what, const char* why) const;

  void (*warn_)(const char* line);
  std::string path_, program_;
  File seal_;
  File whole_; // the file of weights once it is sealed, which nobody may write to then
};

} // namespace prge
