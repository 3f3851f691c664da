// Whether rows fit the program: what a kernel would otherwise index outside of its tensors.
#include <cstring>

#include "fail.h"
#include "trainer_impl.h"

namespace prge {

namespace {

Error weighs_nothing() {
  return fail(
      Error::InvalidExternalData,
      "rows have weights, and the program takes no label weights. Hint: compile it with --method exact "
      "--label-weights");
}

} // namespace

Error Trainer::Impl::check_batch(const std::vector<Row>& batch) const {
  if (batch.size() != rows_per_step()) {
    return fail(Error::InvalidArgument, "a batch of %zu rows; a step takes %u", batch.size(), rows_per_step());
  }
  for (const Row& row : batch) {
    bool is_good = row.num_tokens >= 1 && row.num_tokens <= shape.max_tokens && row.num_labels >= 1 &&
        row.num_labels <= shape.max_labels;
    for (uint32_t i = 0; is_good && i < row.num_tokens; ++i) {
      is_good = row.tokens[i] < shape.vocab_size;
    }
    for (uint32_t i = 0; is_good && i < row.num_labels; ++i) {
      is_good = row.label_pos[i] < row.num_tokens && row.targets[i] < shape.vocab_size;
    }
    if (row.weights != nullptr && !manifest.has_label_weights) {
      return weighs_nothing();
    }
    if (!is_good) {
      return fail(Error::InvalidExternalData, "a row does not fit the program: length, token or label position");
    }
  }
  return Error::Ok;
}

Error Trainer::Impl::check_fit(const Rows& data) const {
  if (std::memcmp(data.tokenizer_sha256_, program->tokenizer_sha256().bytes, sizeof(Digest)) != 0) {
    return fail(
        Error::InvalidExternalData, "the rows were made with another tokenizer than the program's (%s)",
        data.path_.c_str());
  }
  if (data.max_tokens_ > shape.max_tokens || data.max_labels_ > shape.max_labels ||
      data.vocab_size_ > shape.vocab_size) {
    return fail(
        Error::InvalidExternalData,
        "the rows were made for T = %u, K = %u, V = %u; the program has T = %u, K = %u, V = %u (%s)", data.max_tokens_,
        data.max_labels_, data.vocab_size_, shape.max_tokens, shape.max_labels, shape.vocab_size, data.path_.c_str());
  }
  return Error::Ok;
}

Error Trainer::Impl::check_training(const Rows& data) const {
  PRGE_TRY(check_fit(data));
  return data.has_weights() && !manifest.has_label_weights ? weighs_nothing() : Error::Ok;
}

} // namespace prge
