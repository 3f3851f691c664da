// A .pte of `prgec compile --method side` (contract 3): it trains nothing and says what its blocks say at a position.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checksum.h"
#include "prge/error.h"
#include "prge/rows.h"

namespace prge {

constexpr int64_t kSideContractVersion = 3;

class EmittingProgram {
 public:
  static Result<std::unique_ptr<EmittingProgram>> open(const std::string& path, bool verify);
  ~EmittingProgram();

  int64_t batch_size() const {
    return batch_size_;
  }
  int64_t num_blocks() const {
    return num_blocks_;
  }
  int64_t width() const {
    return width_;
  }
  // Hash of what activations depend on besides the rows.
  const std::string& hash() const {
    return hash_;
  }
  // That rows are of this program's tokenizer and sizes.
  Error check(const Rows& rows) const;
  // Runs the model over as many rows as a call takes, or fewer: f32[B, L, D] and f32[B, num_logits()] of the row's one
  // label position. Valid until the next call.
  Error run(const std::vector<Row>& rows, const float*& acts, const float*& logits);
  // Logits of a row: as many as tokens, or as a classifier has classes.
  int64_t num_logits() const {
    return num_logits_;
  }

 private:
  class Methods;
  explicit EmittingProgram(std::string path);
  Error read_constants();
  Error read_manifest(const std::string& text);
  Error load(const std::string& data_path);

  std::string path_, backend_, hash_, data_sha256_;
  bool is_dynamic_ = false, has_checksums_ = false;
  int64_t batch_size_ = 0, seq_len_ = 0, vocab_size_ = 0, pad_token_id_ = 0, num_blocks_ = 0, width_ = 0;
  int64_t num_logits_ = 0;
  Digest tokenizer_sha256_ = {};
  std::unique_ptr<Methods> methods_;
  std::vector<int64_t> tokens_, label_pos_;
  std::vector<float> acts_, logits_;
};

} // namespace prge
