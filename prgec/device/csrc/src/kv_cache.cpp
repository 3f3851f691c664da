#include "kv_cache.h"

#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <vector>

#include "fail.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::extension::from_blob;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

// `extend` takes the tokens, the one whose logits are wanted, and the position of the first; `decode` takes the tokens
// and their positions.
constexpr size_t kNumOthersOfExtend = 3, kNumOthersOfDecode = 2;

Result<std::vector<EValue>> execute(
    executorch::extension::Module& module, const char* method, const std::vector<TensorPtr>& inputs) {
  std::vector<EValue> values;
  values.reserve(inputs.size());
  for (const TensorPtr& input : inputs) {
    values.emplace_back(*input);
  }
  return module.execute(method, values);
}

} // namespace

Error KeyValueCache::open(executorch::extension::Module& module) {
  return held_.open(module, kMethod, kNumOthersOfExtend, 1);
}

Result<Tensor> KeyValueCache::extend(
    executorch::extension::Module& module, const int64_t* tokens, size_t count, size_t start) {
  if (count == 0 || start + count > held_.most()) {
    return fail(Error::InvalidArgument, "%zu tokens from %zu on do not fit a cache of %zu", count, start, held_.most());
  }
  held_.make_room(start, std::max(start, held_.room()));
  int64_t label_pos = static_cast<int64_t>(count) - 1, first = static_cast<int64_t>(start);
  std::vector<TensorPtr> inputs = {
      from_blob(const_cast<int64_t*>(tokens), {1, static_cast<SizesType>(count)}, ScalarType::Long),
      from_blob(&label_pos, {1, 1}, ScalarType::Long), from_blob(&first, {1}, ScalarType::Long)};
  held_.add_to(inputs);
  const auto outputs = execute(module, kMethod, inputs);
  PRGE_TRY(outputs.error());
  held_.make_room(start, std::max(start + count, held_.room()));
  PRGE_TRY(held_.keep(*outputs, count, &first));
  return (*outputs)[0].toTensor();
}

Error RowCaches::open(executorch::extension::Module& module) {
  const auto meta = module.method_meta(kMethod);
  PRGE_TRY(meta.error());
  const auto tokens = meta->input_tensor_meta(0);
  PRGE_TRY(tokens.error());
  const auto sizes = tokens->sizes();
  return held_.open(module, kMethod, kNumOthersOfDecode, sizes.size() == 2 ? static_cast<size_t>(sizes[1]) : 0);
}

Result<Tensor> RowCaches::decode(executorch::extension::Module& module, const int64_t* tokens, const int64_t* starts) {
  const auto [least, most] = std::minmax_element(starts, starts + rows());
  if (*least < 0 || static_cast<size_t>(*most) >= held_.most()) {
    return fail(
        Error::InvalidArgument, "a token at position %lld does not fit a cache of %zu", static_cast<long long>(*most),
        held_.most());
  }
  // For the tokens that are read, too: what is there is kept, since each text has a place of its own.
  held_.make_room(held_.room(), std::max(static_cast<size_t>(*most) + 1, held_.room()));
  const auto count = static_cast<SizesType>(rows());
  std::vector<TensorPtr> inputs = {
      from_blob(const_cast<int64_t*>(tokens), {1, count}, ScalarType::Long),
      from_blob(const_cast<int64_t*>(starts), {count}, ScalarType::Long)};
  held_.add_to(inputs);
  const auto outputs = execute(module, kMethod, inputs);
  PRGE_TRY(outputs.error());
  PRGE_TRY(held_.keep(*outputs, 1, starts));
  return (*outputs)[0].toTensor();
}

} // namespace prge
