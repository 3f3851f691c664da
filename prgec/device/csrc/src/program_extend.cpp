// Reading on behind what a program's cache holds.
#include <algorithm>

#include "fail.h"
#include "program_methods.h"

namespace prge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::from_blob;

constexpr char kMethod[] = "extend";
constexpr size_t kNumInputs = 3;

} // namespace

Error Program::load_extend() {
  if (manifest_.context == 0) {
    return fail(
        Error::InvalidProgram,
        "the program has no cache to read on with (%s). Hint: compile it with --generate --context C", path_.c_str());
  }
  PRGE_TRY(load_method(kMethod, kNumInputs));
  packed_.seal();
  for (size_t layer = 0;; ++layer) {
    for (const char* part : {"cache.k.", "cache.v."}) {
      const auto found = methods_->attribute(part + std::to_string(layer), kMethod);
      if (!found.ok()) {
        // That was the last layer; a program has one at least.
        return layer != 0 ? Error::Ok
                          : fail(Error::InvalidProgram, "method %s has no cache (%s)", kMethod, path_.c_str());
      }
      cache_.push_back(*found);
    }
  }
}

Result<const float*> Program::extend(const uint32_t* ids, size_t count, size_t start) {
  PRGE_TRY(cache_.empty() ? load_extend() : Error::Ok);
  std::vector<int64_t> tokens(ids, ids + count);
  int64_t label_pos = static_cast<int64_t>(count) - 1, first = static_cast<int64_t>(start);
  const auto outputs = execute(
      kMethod,
      {from_blob(tokens.data(), {1, static_cast<SizesType>(count)}, ScalarType::Long),
       from_blob(&label_pos, {1, 1}, ScalarType::Long), from_blob(&first, {1}, ScalarType::Long)});
  PRGE_TRY(outputs.error());
  const bool is_good = outputs->size() == 1 && (*outputs)[0].isTensor() &&
      (*outputs)[0].toTensor().scalar_type() == ScalarType::Float &&
      (*outputs)[0].toTensor().numel() == manifest_.vocab_size;
  if (!is_good) {
    return fail(Error::InvalidProgram, "method %s does not follow the contract (%s)", kMethod, path_.c_str());
  }
  return (*outputs)[0].toTensor().const_data_ptr<float>();
}

Error Program::clear_cache() {
  PRGE_TRY(cache_.empty() ? load_extend() : Error::Ok);
  for (const auto& each : cache_) {
    std::fill_n(static_cast<uint8_t*>(each.mutable_data_ptr()), each.nbytes(), uint8_t{0});
  }
  return Error::Ok;
}

} // namespace prge
