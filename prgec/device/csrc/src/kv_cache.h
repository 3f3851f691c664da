// Keys and values of what the method `extend` has read. A program keeps none: it takes those there are and returns the
// new ones, so that attention costs what was read, and not what could be.
#pragma once

#include <executorch/extension/module/module.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "prge/error.h"

namespace prge {

// Letters: H heads of a layer, n positions there is room for, C the most of them, d width of a head.
class KeyValueCache {
 public:
  static constexpr char kMethod[] = "extend";

  bool is_open() const {
    return !parts_.empty();
  }

  // Finds out what the method takes, once it is loaded.
  Error open(executorch::extension::Module& module);

  // Reads tokens at the positions from `start` on, after those held. Returns the logits after the last one:
  // f32[vocabulary], valid until the method's next call.
  Result<executorch::aten::Tensor> extend(
      executorch::extension::Module& module, const int64_t* tokens, size_t count, size_t start);

  // Clears the cache. A NaN left in it would poison every attention sum, even at weight 0.
  void clear() {
    room_ = 0;
  }

 private:
  // One input: the keys or values of a layer, f32[H, n, d] or i8[H, n, d], or the scale of every row of the latter,
  // f32[H, n, 1], which comes after them.
  struct Part {
    size_t heads = 0, width = 0;
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

  Error add(const executorch::runtime::TensorInfo& input);
  Error keep(const std::vector<executorch::runtime::EValue>& outputs, size_t count, size_t start);
  void make_room(size_t filled, size_t wanted);
  // Keeps keys or values of `count` positions in the part at `index`, and in that of its scales.
  void write(size_t index, const float* fresh, size_t count, size_t start);

  std::vector<Part> parts_; // by layer, keys first
  size_t most_ = 0; // C
  size_t room_ = 0; // n
};

} // namespace prge
