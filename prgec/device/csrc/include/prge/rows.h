// Tokenised examples, made on a workstation by `prgec tokenize`. The format is in prgec's docs/rows.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "prge/error.h"

namespace prge {

class MappedFile;

// One input row. Points into memory that somebody else keeps: a `Rows`, or an application's own arrays.
struct Row {
  const uint32_t* tokens = nullptr;
  const uint32_t* label_pos = nullptr; // label_pos[k] is the position whose logits predict targets[k]
  const uint32_t* targets = nullptr;
  uint32_t num_tokens = 0;
  uint32_t num_labels = 0;
  // Weights of the labels in the loss that is differentiated, num_labels of them; null where all are 1. Only programs
  // with label weights take them. Returned losses are without them.
  const float* weights = nullptr;
};

// A file of rows, mapped and checked as a whole when it is opened: afterwards every index below is safe.
class Rows {
 public:
  static Result<std::unique_ptr<Rows>> open(const std::string& path);
  ~Rows();

  uint32_t num_examples() const {
    return num_examples_;
  }
  // Rows an example has, one for each answer to choose from; 1 for an open-ended task.
  uint32_t num_candidates() const {
    return num_candidates_;
  }
  Row row(uint32_t example, uint32_t candidate) const;
  // Index of the right candidate.
  uint32_t answer(uint32_t example) const {
    return answers_[example];
  }
  // The row training sees.
  Row right_row(uint32_t example) const {
    return row(example, answers_[example]);
  }
  // Whether a row has weights.
  bool has_weights() const {
    return has_weights_;
  }
  // CRC-32 of all right rows: the name a journal gives to its training data.
  uint32_t fingerprint() const;

 private:
  friend class EmittingProgram;
  friend class Trainer;
  Rows() = default;
  Error check_header(const std::string& path);
  Error check_rows(const std::string& path);

  std::unique_ptr<MappedFile> file_;
  std::string path_;
  uint32_t num_examples_ = 0;
  uint32_t num_candidates_ = 0;
  uint32_t max_tokens_ = 0; // T
  uint32_t max_labels_ = 0; // K
  uint32_t vocab_size_ = 0; // V
  bool has_weights_ = false;
  const uint8_t* tokenizer_sha256_ = nullptr;
  const uint32_t* answers_ = nullptr;
  const uint32_t* offsets_ = nullptr;
  const uint32_t* words_ = nullptr;
};

// Which examples a training step sees: the endless sequence of shuffled epochs, cut into steps.
class Order {
 public:
  Order(uint32_t num_examples, uint32_t batch_size, int64_t seed);
  // Examples of step `step`, counted from 1; valid until the next call.
  const std::vector<uint32_t>& step(uint64_t step);

 private:
  void shuffle(uint64_t epoch);

  int64_t seed_;
  uint64_t epoch_ = ~0ull;
  std::vector<std::pair<uint64_t, uint32_t>> keys_;
  std::vector<uint32_t> batch_;
};

} // namespace prge
