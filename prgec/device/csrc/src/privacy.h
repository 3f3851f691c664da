// Protection of labels from readers of shards: labels that are not always the true ones, and scores of a head that only
// this device has. Both are those of prgec's side/targets.py, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device_key.h"
#include "prge/error.h"
#include "shard.h"

namespace prge {

// Label differential privacy: a label is kept with probability e^eps / (e^eps + C - 1), else another one is sent.
class RandomisedResponse {
 public:
  // For an epsilon as it was typed, and C answers.
  static Result<RandomisedResponse> parse(const std::string& epsilon, size_t num_classes);
  size_t say(const DeviceKey& key, const RowIds::Id& row, size_t answer) const;
  // Epsilon as Python writes it.
  const std::string& epsilon() const {
    return epsilon_;
  }

 private:
  std::string epsilon_;
  size_t num_classes_ = 0;
  bool keeps_all_ = false;
  uint64_t keep_ = 0; // kept if a number of 64 bits is below
};

// Signs that follow from the key, C times D of them.
class SecretHead {
 public:
  SecretHead(const DeviceKey& key, size_t num_classes, size_t width);
  // Returns f32[C] for the last block's activation f32[D].
  std::vector<float> scores(const float* acts) const;

 private:
  size_t width_;
  std::vector<int8_t> signs_;
};

// Records beside the shards how labels were made; refuses a folder whose labels were made otherwise. `epsilon` may be
// empty.
Error keep_local(const std::string& folder, const std::string& y_pre, const std::string& epsilon);

} // namespace prge
