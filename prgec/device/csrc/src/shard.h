// The data of rows that a device sends: activations, differences of outputs, and names that only it can read. The bytes
// are those of prgec's formats/shards.py.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device_key.h"
#include "prge/error.h"
#include "prge/rows.h"

namespace prge {

// Names of rows: hashes under the device's key.
class RowIds {
 public:
  using Id = std::array<uint8_t, 16>;
  explicit RowIds(DeviceKey key) : key_(std::move(key)) {}
  // Name of the next row; equal rows are numbered.
  Id next(const Row& row);

 private:
  DeviceKey key_;
  std::map<std::string, uint64_t> seen_;
};

// The shape shared by all shards of a data set.
struct ShardShape {
  std::string program;
  std::string y_pre; // what a network adds to: scores of the candidates, or of a secret head
  int64_t num_blocks = 0, width = 0, num_classes = 0;
  bool is_i8 = false;

  // Rows of a file, at most `wanted`.
  size_t rows_that_fit(size_t wanted) const;
  // Length and header of a file of so many rows.
  std::string header(size_t num_rows) const;
  // Bytes after it.
  size_t body_bytes(size_t num_rows) const;
  // Where the names of the rows begin in them.
  size_t ids_offset(size_t num_rows) const;
};

// Rows of one file.
struct Shard {
  std::vector<RowIds::Id> ids;
  std::vector<float> acts; // f32[n, L, D]
  std::vector<float> dy; // f32[n, C]

  // The whole file. An error where an activation is not finite, or too large for f16.
  Result<std::string> pack(const ShardShape& shape) const;
};

// onehot - 1/C - (z - mean z) of the scores z of C answers; of a single score, what is right less what the model says.
void difference(const float* scores, size_t num_classes, double right, float* dy);

uint16_t half_bits(float value);

} // namespace prge
