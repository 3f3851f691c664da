#include "prge/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checksum.h"
#include "fail.h"
#include "files.h"
#include "philox.h"

namespace prge {

namespace {

constexpr size_t kHeaderBytes = 96;
constexpr size_t kCheckedFrom = 16;
// Rows of the second have weights, or not.
constexpr uint32_t kVersion = 1, kWeightedVersion = 2;
// Place of the query in the counter of the noise; queries themselves are small numbers.
constexpr uint32_t kOrderQuery = 0xfffffffe;

template <typename T>
T read(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

Error damaged(const std::string& path, const char* what) {
  return fail(Error::InvalidExternalData, "%s (%s). Hint: make it again with prgec tokenize", what, path.c_str());
}

} // namespace

Result<std::unique_ptr<Rows>> Rows::open(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file.ok()) {
    return file.error();
  }
  std::unique_ptr<Rows> rows(new Rows());
  rows->file_ = std::move(*file);
  rows->path_ = path;
  PRGE_TRY(rows->check_header(path));
  PRGE_TRY(rows->check_rows(path));
  return rows;
}

Rows::~Rows() = default;

Error Rows::check_header(const std::string& path) {
  const uint8_t* data = file_->data();
  const size_t size = file_->size();
  if (size < kHeaderBytes || std::memcmp(data, "PRGEROWS", 8) != 0) {
    return damaged(path, "not a file of rows");
  }
  if (const auto version = read<uint32_t>(data + 8); version != kVersion && version != kWeightedVersion) {
    return damaged(path, "the file of rows has another version");
  }
  if (read<uint64_t>(data + 16) != size || size % 4 != 0 ||
      crc32(data + kCheckedFrom, size - kCheckedFrom) != read<uint32_t>(data + 12)) {
    return damaged(path, "the file of rows is damaged or cut short");
  }
  num_examples_ = read<uint32_t>(data + 24);
  num_candidates_ = read<uint32_t>(data + 28);
  max_tokens_ = read<uint32_t>(data + 32);
  max_labels_ = read<uint32_t>(data + 36);
  vocab_size_ = read<uint32_t>(data + 40);
  tokenizer_sha256_ = data + 48;
  answers_ = reinterpret_cast<const uint32_t*>(data + kHeaderBytes);
  // Counts are 32 bits wide, so none of these products overflows 64.
  const uint64_t num_rows = uint64_t{num_examples_} * num_candidates_;
  const uint64_t num_words = (size - kHeaderBytes) / 4;
  if (num_rows == 0 || num_rows >= num_words || num_examples_ + num_rows + 1 > num_words) {
    return damaged(path, "the file of rows holds no rows");
  }
  offsets_ = answers_ + num_examples_;
  words_ = offsets_ + num_rows + 1;
  return Error::Ok;
}

Error Rows::check_rows(const std::string& path) {
  const uint64_t num_rows = uint64_t{num_examples_} * num_candidates_;
  const uint64_t num_words = static_cast<uint64_t>(answers_ + (file_->size() - kHeaderBytes) / 4 - words_);
  bool is_good = std::all_of(answers_, answers_ + num_examples_, [this](uint32_t a) { return a < num_candidates_; });
  for (uint64_t i = 0; is_good && i < num_rows; ++i) {
    const uint64_t first = offsets_[i], end = offsets_[i + 1];
    is_good = first + 2 <= end && end <= num_words;
    if (!is_good) {
      break;
    }
    const uint64_t n = words_[first], k = words_[first + 1];
    const bool is_weighted = read<uint32_t>(file_->data() + 8) == kWeightedVersion && end - first == 2 + n + 3 * k;
    has_weights_ = has_weights_ || is_weighted;
    is_good = n >= 1 && n <= max_tokens_ && k >= 1 && k <= max_labels_ && (is_weighted || end - first == 2 + n + 2 * k);
    const uint64_t weights = is_good ? first + 2 + n + 2 * k : first;
    for (uint64_t j = weights; is_good && j < end; ++j) {
      is_good = std::isfinite(read<float>(reinterpret_cast<const uint8_t*>(words_ + j)));
    }
    for (uint64_t j = first + 2; is_good && j < weights; ++j) {
      const bool is_position = j >= first + 2 + n && j < first + 2 + n + k;
      is_good = words_[j] < (is_position ? n : vocab_size_);
    }
  }
  return is_good ? Error::Ok : damaged(path, "a row of the file is damaged");
}

Row Rows::row(uint32_t example, uint32_t candidate) const {
  const uint64_t index = uint64_t{example} * num_candidates_ + candidate;
  const uint32_t* body = words_ + offsets_[index];
  Row row;
  row.num_tokens = body[0];
  row.num_labels = body[1];
  row.tokens = body + 2;
  row.label_pos = row.tokens + row.num_tokens;
  row.targets = row.label_pos + row.num_labels;
  const uint32_t* rest = row.targets + row.num_labels;
  row.weights = rest == words_ + offsets_[index + 1] ? nullptr : reinterpret_cast<const float*>(rest);
  return row;
}

uint32_t Rows::fingerprint() const {
  uint32_t crc = 0;
  for (uint32_t example = 0; example < num_examples_; ++example) {
    const uint64_t index = uint64_t{example} * num_candidates_ + answers_[example];
    crc = crc32(words_ + offsets_[index], 4 * (size_t{offsets_[index + 1]} - offsets_[index]), crc);
  }
  return crc;
}

Order::Order(uint32_t num_examples, uint32_t batch_size, int64_t seed)
    : seed_(seed), keys_(num_examples), batch_(batch_size) {}

const std::vector<uint32_t>& Order::step(uint64_t step) {
  uint64_t position = (step - 1) * batch_.size();
  for (uint32_t& example : batch_) {
    if (position / keys_.size() != epoch_) {
      shuffle(position / keys_.size());
    }
    example = keys_[position++ % keys_.size()].second;
  }
  return batch_;
}

void Order::shuffle(uint64_t epoch) {
  const uint64_t seed = static_cast<uint64_t>(seed_);
  const prgec::PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(epoch)};
  for (uint32_t row = 0; row < keys_.size(); ++row) {
    const prgec::Words4 x = prgec::philox4x32({row, kOrderQuery, 0, static_cast<uint32_t>(seed >> 32)}, key);
    keys_[row] = {uint64_t{x.x1} << 32 | x.x0, row};
  }
  std::sort(keys_.begin(), keys_.end());
  epoch_ = epoch;
}

} // namespace prge
