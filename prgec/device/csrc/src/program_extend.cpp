// Reads tokens after those in the cache.
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
  const auto logits = cache_.extend(*methods_, tokens.data(), count, start);
  if (!logits.ok()) {
    return logits.error() == Error::InvalidProgram
        ? logits.error()
        : fail(Error::InvalidProgram, "the program failed to run (%s): %s", path_.c_str(), to_string(logits.error()));
  }
  if (logits->scalar_type() != executorch::aten::ScalarType::Float || logits->numel() != manifest_.vocab_size) {
    return fail(
        Error::InvalidProgram, "method %s does not follow the contract (%s)", KeyValueCache::kMethod, path_.c_str());
  }
  return logits->const_data_ptr<float>();
}

Error Program::clear_cache() {
  PRGE_TRY(cache_.is_open() ? Error::Ok : load_extend());
  cache_.clear();
  return Error::Ok;
}

} // namespace prge
