#include "reader.h"

#include <algorithm>
#include <cmath>

#include "fail.h"

namespace prge {

Error Reader::check(const std::vector<uint32_t>& text) const {
  const Manifest& manifest = program_->manifest();
  if (text.empty()) {
    return fail(Error::InvalidExternalData, "there is no text to continue");
  }
  for (const uint32_t id : text) {
    if (id >= manifest.vocab_size) {
      return fail(
          Error::InvalidExternalData, "token %u is not one of the program's %lld", id,
          static_cast<long long>(manifest.vocab_size));
    }
  }
  if (text.size() > static_cast<uint64_t>(manifest.context)) {
    return fail(
        Error::InvalidExternalData,
        "the text has %zu tokens, and the program's cache holds %lld. Hint: compile it with a larger --context",
        text.size(), static_cast<long long>(manifest.context));
  }
  return Error::Ok;
}

Result<const float*> Reader::read(const std::vector<uint32_t>& text) {
  std::vector<uint32_t>& held = program_->held();
  const size_t most = std::min(held.size(), text.size() - 1); // logits come from a token that is read
  const auto shared = std::mismatch(held.begin(), held.begin() + static_cast<int64_t>(most), text.begin());
  held.erase(shared.first, held.end());
  if (held.empty()) {
    PRGE_TRY(program_->clear_cache());
  }
  const float* logits = nullptr;
  while (held.size() < text.size()) {
    const size_t first = held.size(), count = std::min(kExtendTokens, text.size() - first);
    const auto found = program_->extend(&text[first], count, first);
    PRGE_TRY(found.error());
    logits = *found;
    held.insert(held.end(), &text[first], &text[first] + count);
  }
  if (const Error error = check_finite(logits, program_->manifest().vocab_size); error != Error::Ok) {
    forget();
    return error;
  }
  return logits;
}

Error check_finite(const float* logits, int64_t vocab_size) {
  return std::any_of(logits, logits + vocab_size, [](float each) { return std::isnan(each); })
      ? fail(
            Error::InvalidProgram,
            "the program computes values that are not finite: its trained weights are too large. Hint: take an "
            "earlier adapter")
      : Error::Ok;
}

} // namespace prge
