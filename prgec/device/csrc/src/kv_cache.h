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
  bool is_open() const {
    return !parts_.empty();
  }

  // Finds out what the method takes, once it is loaded.
  Error open(executorch::extension::Module& module);

  // Reads tokens at the positions from `start` on, behind what is held in front of them. Returns the logits behind the
  // last one: f32[vocabulary], valid until the method's next call.
  Result<executorch::aten::Tensor> extend(
      executorch::extension::Module& module, const int64_t* tokens, size_t count, size_t start);

  // Forgets everything. What is no number would spoil every sum it is in, whatever its weight, so it does not stay.
  void clear() {
    room_ = 0;
  }

 private:
  // The keys or values of a layer: f32[H, n, d].
  struct Part {
    size_t heads = 0, width = 0;
    std::unique_ptr<float[], decltype(&std::free)> data = {nullptr, &std::free};
  };

  void make_room(size_t filled, size_t wanted);
  void write(const Part& part, const float* fresh, size_t count, size_t start);

  std::vector<Part> parts_; // by layer, keys first
  size_t most_ = 0; // C
  size_t room_ = 0; // n
};

} // namespace prge
