// The two methods that read on with a cache: `extend` one text by many tokens, `decode` R texts by a token each.
#pragma once

#include <executorch/extension/module/module.h>

#include <cstddef>
#include <cstdint>

#include "key_values.h"
#include "prge/error.h"

namespace prge {

// The text that `extend` has read.
class KeyValueCache {
 public:
  static constexpr char kMethod[] = "extend";

  bool is_open() const {
    return held_.is_open();
  }

  // Finds out what the method takes, once it is loaded.
  Error open(executorch::extension::Module& module);

  // Reads tokens at the positions from `start` on, after those held. Returns the logits after the last one:
  // f32[vocabulary], valid until the method's next call.
  Result<executorch::aten::Tensor> extend(
      executorch::extension::Module& module, const int64_t* tokens, size_t count, size_t start);

  void clear() {
    held_.clear();
  }

  const KeyValues& held() const {
    return held_;
  }

 private:
  KeyValues held_;
};

// The R texts that `decode` has read.
class RowCaches {
 public:
  static constexpr char kMethod[] = "decode";

  bool is_open() const {
    return held_.is_open();
  }
  // R.
  size_t rows() const {
    return held_.rows();
  }

  Error open(executorch::extension::Module& module);

  // Lets a text begin with the first `count` tokens that `extend` has read, and forgets what it was before.
  Error fork(const KeyValueCache& from, size_t row, size_t count) {
    return held_.copy(from.held(), row, count);
  }

  // Reads one token of each text, tokens[r] at the position starts[r]. Returns the logits after them:
  // f32[R, vocabulary], valid until the method's next call.
  Result<executorch::aten::Tensor> decode(
      executorch::extension::Module& module, const int64_t* tokens, const int64_t* starts);

 private:
  KeyValues held_;
};

} // namespace prge
