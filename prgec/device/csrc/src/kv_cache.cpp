#include "kv_cache.h"

#include <executorch/extension/tensor/tensor.h>

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

// The tokens, the one whose logits are wanted, and the position of the first.
constexpr size_t kNumOthers = 3;
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

Error no_cache() {
  return fail(
      Error::InvalidProgram,
      "method extend does not follow the contract: it takes no cache. Hint: compile the program again");
}

} // namespace

Error KeyValueCache::open(executorch::extension::Module& module) {
  const auto meta = module.method_meta(kMethod);
  PRGE_TRY(meta.error());
  parts_.clear();
  size_t num_outputs = 1; // the logits
  for (size_t index = kNumOthers; index < meta->num_inputs(); ++index) {
    const auto input = meta->input_tensor_meta(index);
    PRGE_TRY(input.error());
    PRGE_TRY(add(*input));
    num_outputs += parts_.size() < 2 || !parts_[parts_.size() - 2].is_coded();
  }
  if (parts_.empty() || parts_.back().is_coded() || meta->num_outputs() != num_outputs) {
    parts_.clear();
    return no_cache();
  }
  return Error::Ok;
}

Error KeyValueCache::add(const executorch::runtime::TensorInfo& input) {
  const auto sizes = input.sizes();
  const bool is_scale = !parts_.empty() && parts_.back().is_coded();
  const bool is_known =
      input.scalar_type() == ScalarType::Float || (input.scalar_type() == ScalarType::Char && !is_scale);
  if (!is_known || sizes.size() != 3 ||
      (is_scale && (sizes[2] != 1 || parts_.back().heads != static_cast<size_t>(sizes[0]))) ||
      (!parts_.empty() && most_ != static_cast<size_t>(sizes[1]))) {
    parts_.clear();
    return no_cache();
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

Result<Tensor> KeyValueCache::extend(
    executorch::extension::Module& module, const int64_t* tokens, size_t count, size_t start) {
  if (count == 0 || start + count > most_) {
    return fail(Error::InvalidArgument, "%zu tokens from %zu on do not fit a cache of %zu", count, start, most_);
  }
  make_room(start, std::max(start, room_));
  int64_t label_pos = static_cast<int64_t>(count) - 1, first = static_cast<int64_t>(start);
  std::vector<TensorPtr> inputs = {
      from_blob(const_cast<int64_t*>(tokens), {1, static_cast<SizesType>(count)}, ScalarType::Long),
      from_blob(&label_pos, {1, 1}, ScalarType::Long), from_blob(&first, {1}, ScalarType::Long)};
  for (const Part& part : parts_) {
    const auto heads = static_cast<SizesType>(part.heads), width = static_cast<SizesType>(part.width);
    inputs.push_back(from_blob(part.data.get(), {heads, static_cast<SizesType>(room_), width}, part.type));
  }
  std::vector<EValue> values;
  values.reserve(inputs.size());
  for (const TensorPtr& input : inputs) {
    values.emplace_back(*input);
  }
  const auto outputs = module.execute(kMethod, values);
  PRGE_TRY(outputs.error());
  PRGE_TRY(keep(*outputs, count, start));
  return (*outputs)[0].toTensor();
}

// Takes the keys and values of `count` new tokens from what the method returned.
Error KeyValueCache::keep(const std::vector<EValue>& outputs, size_t count, size_t start) {
  const bool are_floats = std::all_of(outputs.begin(), outputs.end(), [](const EValue& each) {
    return each.isTensor() && each.toTensor().scalar_type() == ScalarType::Float;
  });
  if (!are_floats) {
    return no_cache();
  }
  make_room(start, std::max(start + count, room_));
  size_t index = 0;
  for (size_t output = 1; output < outputs.size(); ++output) {
    const Part& part = parts_[index];
    const Tensor& fresh = outputs[output].toTensor();
    if (static_cast<size_t>(fresh.numel()) != part.heads * count * part.width) {
      return no_cache();
    }
    write(index, fresh.const_data_ptr<float>(), count, start);
    index += part.is_coded() ? 2 : 1;
  }
  return Error::Ok;
}

// Gives every head room for `wanted` positions or some more, and keeps the first `filled`.
void KeyValueCache::make_room(size_t filled, size_t wanted) {
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

void KeyValueCache::write(size_t index, const float* fresh, size_t count, size_t start) {
  const Part& part = parts_[index];
  for (size_t head = 0; head < part.heads; ++head) {
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
