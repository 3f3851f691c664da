// Reads tokens after those in the caches.
#include "fail.h"
#include "program_methods.h"

namespace prge {

Error Program::load_extend() {
  if (manifest_.context == 0) {
    return fail(
        Error::InvalidProgram,
        "the program has no cache to continue with (%s). Hint: compile it with --generate --context C", path_.c_str());
  }
  PRGE_TRY(load_method(KeyValueCache::kMethod));
  packed_.seal();
  return cache_.open(*methods_);
}

Result<const float*> Program::extend(const uint32_t* ids, size_t count, size_t start) {
  PRGE_TRY(cache_.is_open() ? Error::Ok : load_extend());
  const std::vector<int64_t> tokens(ids, ids + count);
  return checked(cache_.extend(*methods_, tokens.data(), count, start), KeyValueCache::kMethod, 1);
}

Result<const float*> Program::checked(
    const Result<executorch::aten::Tensor>& logits, const char* method, int64_t rows) {
  if (!logits.ok()) {
    return logits.error() == Error::InvalidProgram
        ? logits.error()
        : fail(Error::InvalidProgram, "the program failed to run (%s): %s", path_.c_str(), to_string(logits.error()));
  }
  if (logits->scalar_type() != executorch::aten::ScalarType::Float || logits->numel() != rows * manifest_.vocab_size) {
    return fail(Error::InvalidProgram, "method %s does not follow the contract (%s)", method, path_.c_str());
  }
  return logits->const_data_ptr<float>();
}

Error Program::clear_cache() {
  PRGE_TRY(cache_.is_open() ? Error::Ok : load_extend());
  cache_.clear();
  return Error::Ok;
}

Error Program::load_decode() {
  PRGE_TRY(cache_.is_open() ? Error::Ok : load_extend());
  PRGE_TRY(load_method(RowCaches::kMethod));
  PRGE_TRY(caches_.open(*methods_));
  return caches_.rows() == static_cast<size_t>(manifest_.rollouts)
      ? Error::Ok
      : fail(Error::InvalidProgram, "method decode does not follow the contract (%s)", path_.c_str());
}

Error Program::fork(size_t row, size_t count) {
  PRGE_TRY(caches_.is_open() ? Error::Ok : load_decode());
  return caches_.fork(cache_, row, count);
}

Result<const float*> Program::decode(const std::vector<int64_t>& tokens, const std::vector<int64_t>& starts) {
  PRGE_TRY(caches_.is_open() ? Error::Ok : load_decode());
  return checked(caches_.decode(*methods_, tokens.data(), starts.data()), RowCaches::kMethod, manifest_.rollouts);
}

} // namespace prge
