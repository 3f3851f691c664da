#include "kv_cache.h"

#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
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

constexpr char kMethod[] = "extend";
// Tokens, which of them to give the logits behind, and the position of the first.
constexpr size_t kNumOthers = 3;
// Room is made for so many positions at once: a delegate plans anew for every size it has not seen last.
constexpr size_t kStep = 64;
// XNNPACK's kernels may read so many bytes behind an input (XNN_EXTRA_BYTES, or twice that).
constexpr size_t kBehind = 256;

// Memory is the system's own until it is written to.
float* reserve(size_t count) {
  return static_cast<float*>(std::calloc(count * sizeof(float) + kBehind, 1));
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
  if (meta->num_inputs() <= kNumOthers || meta->num_outputs() != meta->num_inputs() - kNumOthers + 1) {
    return no_cache();
  }
  std::vector<Part> parts;
  for (size_t index = kNumOthers; index < meta->num_inputs(); ++index) {
    const auto input = meta->input_tensor_meta(index);
    PRGE_TRY(input.error());
    const auto sizes = input->sizes();
    if (input->scalar_type() != ScalarType::Float || sizes.size() != 3 ||
        (!parts.empty() && most_ != static_cast<size_t>(sizes[1]))) {
      return no_cache();
    }
    most_ = static_cast<size_t>(sizes[1]);
    Part part;
    part.heads = static_cast<size_t>(sizes[0]);
    part.width = static_cast<size_t>(sizes[2]);
    part.data.reset(reserve(part.heads * most_ * part.width));
    if (!part.data) {
      return fail(Error::MemoryAllocationFailed, "there is no memory for a cache of %zu positions", most_);
    }
    parts.push_back(std::move(part));
  }
  parts_ = std::move(parts);
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
    inputs.push_back(from_blob(part.data.get(), {heads, static_cast<SizesType>(room_), width}, ScalarType::Float));
  }
  std::vector<EValue> values;
  values.reserve(inputs.size());
  for (const TensorPtr& input : inputs) {
    values.emplace_back(*input);
  }
  const auto outputs = module.execute(kMethod, values);
  PRGE_TRY(outputs.error());
  make_room(start, std::max(start + count, room_));
  for (size_t index = 0; index < parts_.size(); ++index) {
    const Tensor& fresh = (*outputs)[index + 1].toTensor();
    if (static_cast<size_t>(fresh.numel()) != parts_[index].heads * count * parts_[index].width) {
      return no_cache();
    }
    write(parts_[index], fresh.const_data_ptr<float>(), count, start);
  }
  return (*outputs)[0].toTensor();
}

// Gives every head room for `wanted` positions or some more, and keeps the first `filled`.
void KeyValueCache::make_room(size_t filled, size_t wanted) {
  const size_t room = std::min(most_, std::max<size_t>(1, (wanted + kStep - 1) / kStep) * kStep);
  if (room == room_) {
    return;
  }
  for (const Part& part : parts_) {
    for (size_t head = part.heads; head-- > 0;) { // from behind: rooms only grow, until everything is forgotten
      float* to = &part.data[head * room * part.width];
      if (filled != 0) {
        std::memmove(to, &part.data[head * room_ * part.width], filled * part.width * sizeof(float));
      }
      std::fill(to + filled * part.width, to + room * part.width, 0.0F);
    }
  }
  room_ = room;
}

void KeyValueCache::write(const Part& part, const float* fresh, size_t count, size_t start) {
  for (size_t head = 0; head < part.heads; ++head) {
    std::copy_n(fresh + head * count * part.width, count * part.width, &part.data[(head * room_ + start) * part.width]);
  }
}

} // namespace prge
