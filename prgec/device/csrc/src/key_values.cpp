#include "key_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fail.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::extension::from_blob;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

// Room is made for so many positions at once: a delegate plans anew for every size it has not seen last.
constexpr size_t kStep = 64;
// XNNPACK's kernels may read this many bytes after an input (XNN_EXTRA_BYTES, or twice that).
constexpr size_t kPadding = 256;

// The largest code of 8 bits.
constexpr float kCodes = 127;

// Memory is the system's own until it is written to.
uint8_t* reserve(size_t bytes) {
  return static_cast<uint8_t*>(std::calloc(bytes + kPadding, 1));
}

// Codes of a row, to the nearest of 255; returns their scale.
float encode(const float* row, size_t width, int8_t* codes) {
  float peak = 0;
  for (size_t i = 0; i < width; ++i) {
    peak = std::max(peak, std::fabs(row[i]));
  }
  const float scale = peak / kCodes;
  for (size_t i = 0; i < width; ++i) {
    // A value that is not finite makes its method's logits not finite too, so its code is never used.
    const float code = scale > 0 && std::isfinite(row[i]) ? std::nearbyint(row[i] / scale) : 0;
    codes[i] = static_cast<int8_t>(code);
  }
  return scale;
}

Error no_cache(const char* method) {
  return fail(
      Error::InvalidProgram,
      "method %s does not follow the contract: it takes no cache. Hint: compile the program again", method);
}

} // namespace

Error KeyValues::open(executorch::extension::Module& module, const char* method, size_t num_others, size_t rows) {
  const auto meta = module.method_meta(method);
  PRGE_TRY(meta.error());
  parts_.clear();
  rows_ = rows;
  size_t num_outputs = 1; // the logits
  for (size_t index = num_others; index < meta->num_inputs(); ++index) {
    const auto input = meta->input_tensor_meta(index);
    PRGE_TRY(input.error());
    PRGE_TRY(add(*input, method));
    num_outputs += parts_.size() < 2 || !parts_[parts_.size() - 2].is_coded();
  }
  if (parts_.empty() || parts_.back().is_coded() || meta->num_outputs() != num_outputs) {
    parts_.clear();
    return no_cache(method);
  }
  return Error::Ok;
}

Error KeyValues::add(const executorch::runtime::TensorInfo& input, const char* method) {
  const auto sizes = input.sizes();
  const bool is_scale = !parts_.empty() && parts_.back().is_coded();
  const bool is_known =
      input.scalar_type() == ScalarType::Float || (input.scalar_type() == ScalarType::Char && !is_scale);
  if (!is_known || sizes.size() != 3 || rows_ == 0 || static_cast<size_t>(sizes[0]) % rows_ != 0 ||
      (is_scale && (sizes[2] != 1 || parts_.back().heads != static_cast<size_t>(sizes[0]))) ||
      (!parts_.empty() && most_ != static_cast<size_t>(sizes[1]))) {
    parts_.clear();
    return no_cache(method);
  }
  most_ = static_cast<size_t>(sizes[1]);
  Part part;
  part.heads = static_cast<size_t>(sizes[0]);
  part.width = static_cast<size_t>(sizes[2]);
  part.type = input.scalar_type();
  part.data.reset(reserve(part.heads * most_ * part.row_bytes()));
  if (!part.data) {
    parts_.clear();
    return fail(Error::MemoryAllocationFailed, "there is no memory for a cache of %zu positions", most_);
  }
  parts_.push_back(std::move(part));
  return Error::Ok;
}

void KeyValues::add_to(std::vector<TensorPtr>& inputs) {
  for (const Part& part : parts_) {
    const auto heads = static_cast<SizesType>(part.heads), width = static_cast<SizesType>(part.width);
    inputs.push_back(from_blob(part.data.get(), {heads, static_cast<SizesType>(room_), width}, part.type));
  }
}

Error KeyValues::keep(const std::vector<EValue>& outputs, size_t count, const int64_t* starts) {
  size_t index = 0;
  for (size_t output = 1; output < outputs.size(); ++output) {
    const Part& part = parts_[index];
    const bool is_float = outputs[output].isTensor() && outputs[output].toTensor().scalar_type() == ScalarType::Float;
    if (!is_float || static_cast<size_t>(outputs[output].toTensor().numel()) != part.heads * count * part.width) {
      return fail(Error::InvalidProgram, "a method with a cache does not follow the contract");
    }
    write(index, outputs[output].toTensor().const_data_ptr<float>(), count, starts);
    index += part.is_coded() ? 2 : 1;
  }
  return Error::Ok;
}

Error KeyValues::copy(const KeyValues& from, size_t row, size_t count) {
  if (row >= rows_ || count > from.room_ || count > most_ || parts_.size() != from.parts_.size()) {
    return fail(Error::InvalidArgument, "there is no text %zu with room for %zu tokens that were read", row, count);
  }
  make_room(room_, std::max(count, room_));
  for (size_t index = 0; index < parts_.size(); ++index) {
    const Part& to = parts_[index];
    const Part& its = from.parts_[index];
    const size_t heads = to.heads / rows_;
    if (its.heads != heads || its.width != to.width || its.type != to.type) {
      return fail(Error::InvalidProgram, "the caches of the program's methods differ. Hint: compile it again");
    }
    for (size_t head = 0; head < heads; ++head) {
      uint8_t* begin = &to.data[to.place(room_, row * heads + head, 0)];
      std::memcpy(begin, &its.data[its.place(from.room_, head, 0)], count * to.row_bytes());
      std::memset(begin + count * to.row_bytes(), 0, (room_ - count) * to.row_bytes());
    }
  }
  return Error::Ok;
}

void KeyValues::make_room(size_t filled, size_t wanted) {
  const size_t room = std::min(most_, std::max<size_t>(1, (wanted + kStep - 1) / kStep) * kStep);
  if (room == room_) {
    return;
  }
  filled = std::min(filled, room_);
  for (const Part& part : parts_) {
    for (size_t head = part.heads; head-- > 0;) { // backwards: rooms only grow, until everything is forgotten
      uint8_t* to = &part.data[part.place(room, head, 0)];
      if (filled != 0) {
        std::memmove(to, &part.data[part.place(room_, head, 0)], filled * part.row_bytes());
      }
      std::memset(to + filled * part.row_bytes(), 0, (room - filled) * part.row_bytes());
    }
  }
  room_ = room;
}

void KeyValues::write(size_t index, const float* fresh, size_t count, const int64_t* starts) {
  const Part& part = parts_[index];
  for (size_t head = 0; head < part.heads; ++head) {
    const auto start = static_cast<size_t>(starts[head / (part.heads / rows_)]);
    const float* from = fresh + head * count * part.width;
    uint8_t* to = &part.data[part.place(room_, head, start)];
    if (!part.is_coded()) {
      std::memcpy(to, from, count * part.row_bytes());
      continue;
    }
    const Part& scales = parts_[index + 1];
    for (size_t t = 0; t < count; ++t) {
      const float scale = encode(from + t * part.width, part.width, reinterpret_cast<int8_t*>(to) + t * part.width);
      std::memcpy(&scales.data[scales.place(room_, head, start + t)], &scale, sizeof(scale));
    }
  }
}

} // namespace prge
