// Keys and values of texts, as methods with a cache take and return them. A program keeps none: it takes those there
// are and returns the new ones, so that attention costs what was read, and not what could be.
#pragma once

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "prge/error.h"

namespace prge {

// Letters: R texts, H heads of a layer, n positions there is room for, C the most of them, d width of a head.
class KeyValues {
 public:
  bool is_open() const {
    return !parts_.empty();
  }
  // R.
  size_t rows() const {
    return rows_;
  }
  // C.
  size_t most() const {
    return most_;
  }
  size_t room() const {
    return room_;
  }

  // Finds out what a loaded method takes after its first `num_others` inputs, for the caches of `rows` texts.
  Error open(executorch::extension::Module& module, const char* method, size_t num_others, size_t rows);

  // Clears the cache. A NaN left in it would poison every attention sum, even at weight 0.
  void clear() {
    room_ = 0;
  }

  // Gives every head room for `wanted` positions or some more, and keeps the first `filled`.
  void make_room(size_t filled, size_t wanted);

  // Adds the cache to the inputs of a call; they are valid until the next change of it.
  void add_to(std::vector<executorch::extension::TensorPtr>& inputs);

  // Keeps the keys and values of `count` new tokens of each text, which stand at starts[text] and after, from what the
  // method returned after its logits.
  Error keep(const std::vector<executorch::runtime::EValue>& outputs, size_t count, const int64_t* starts);

  // Makes the first `count` positions of a text those of the one text of another cache, and clears the others.
  Error copy(const KeyValues& from, size_t row, size_t count);

 private:
  // One input: the keys or values of a layer, f32[R * H, n, d] or i8[R * H, n, d], or the scale of every row of the
  // latter, f32[R * H, n, 1], which comes after them.
  struct Part {
    size_t heads = 0, width = 0; // R * H and d
    executorch::aten::ScalarType type = executorch::aten::ScalarType::Float;
    std::unique_ptr<uint8_t[], decltype(&std::free)> data = {nullptr, &std::free};

    bool is_coded() const {
      return type == executorch::aten::ScalarType::Char;
    }
    size_t row_bytes() const {
      return width * (is_coded() ? 1 : sizeof(float));
    }
    size_t place(size_t room, size_t head, size_t position) const {
      return (head * room + position) * row_bytes();
    }
  };

  Error add(const executorch::runtime::TensorInfo& input, const char* method);
  // Keeps keys or values in the part at `index`, and in that of its scales.
  void write(size_t index, const float* fresh, size_t count, const int64_t* starts);

  std::vector<Part> parts_; // by layer, keys first
  size_t rows_ = 1; // R
  size_t most_ = 0; // C
  size_t room_ = 0; // n
};

} // namespace prge
