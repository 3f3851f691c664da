#include "privacy.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "fail.h"
#include "files.h"
#include "json.h"

namespace prge {

namespace {

// In between, Python writes a number without an exponent.
constexpr double kLeastEpsilon = 1e-4, kMostEpsilon = 1e3;
constexpr double kSmall = 1e-12;
constexpr size_t kDigestBits = 256;

std::string as_python_writes(double value) {
  char digits[64];
  const auto done = std::to_chars(std::begin(digits), std::end(digits), value, std::chars_format::fixed);
  std::string text(digits, done.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

} // namespace

Result<RandomisedResponse> RandomisedResponse::parse(const std::string& epsilon, size_t num_classes) {
  if (num_classes == 1) {
    return fail(Error::InvalidArgument, "--label-dp is for a choice between answers; a score has no alternatives");
  }
  char* end = nullptr;
  const double value = std::strtod(epsilon.c_str(), &end);
  if (*end != '\0' || !(value >= kLeastEpsilon && value <= kMostEpsilon)) {
    return fail(
        Error::InvalidArgument, "--label-dp is %s; expected a number from %g to %g", epsilon.c_str(), kLeastEpsilon,
        kMostEpsilon);
  }
  RandomisedResponse found;
  found.epsilon_ = as_python_writes(value);
  found.num_classes_ = num_classes;
  const double kept = 1.0 / (1.0 + static_cast<double>(num_classes - 1) * std::exp(-value));
  found.keeps_all_ = kept >= 1.0;
  found.keep_ = found.keeps_all_ ? 0 : static_cast<uint64_t>(std::ldexp(kept, 64));
  return found;
}

size_t RandomisedResponse::say(const DeviceKey& key, const RowIds::Id& row, size_t answer) const {
  const std::string purpose = "label-dp " + std::to_string(num_classes_) + " " + epsilon_;
  const Digest drawn = key.of(purpose, std::string(row.begin(), row.end()));
  if (keeps_all_ || read_u64(drawn.bytes) < keep_) {
    return answer;
  }
  const auto other = static_cast<size_t>(read_u64(drawn.bytes + 8) % (num_classes_ - 1));
  return other + (other >= answer);
}

SecretHead::SecretHead(const DeviceKey& key, size_t num_classes, size_t width) : width_(width) {
  Digest drawn{};
  for (size_t at = 0; at < num_classes * width; ++at) {
    if (at % kDigestBits == 0) {
      std::string number;
      append_u64(number, at / kDigestBits);
      drawn = key.of("secret-head", number);
    }
    const size_t bit = at % kDigestBits;
    signs_.push_back(drawn.bytes[bit / 8] >> (bit % 8) & 1 ? 1 : -1);
  }
}

std::vector<float> SecretHead::scores(const float* acts) const {
  const auto width = static_cast<double>(width_);
  double squares = 0.0;
  for (size_t d = 0; d < width_; ++d) {
    squares += static_cast<double>(acts[d]) * static_cast<double>(acts[d]);
  }
  const double divisor = (std::sqrt(squares / width) + kSmall) * std::sqrt(width);
  std::vector<float> found;
  for (size_t at = 0; at < signs_.size(); at += width_) {
    double total = 0.0;
    for (size_t d = 0; d < width_; ++d) {
      total += static_cast<double>(acts[d]) * signs_[at + d];
    }
    found.push_back(static_cast<float>(total / divisor));
  }
  return found;
}

// As prgec's side/emit.py writes it; names of the answers are not in tokenised rows.
Error keep_local(const std::string& folder, const std::string& y_pre, const std::string& epsilon) {
  const std::string path = folder + "/local.json", value = epsilon.empty() ? "null" : epsilon;
  if (!is_file(path)) {
    const std::string text =
        "{\n  \"choices\": [],\n  \"y_pre\": \"" + y_pre + "\",\n  \"label_dp\": " + value + "\n}\n";
    AtomicFile file(path);
    PRGE_TRY(file.open());
    PRGE_TRY(file.write(text.data(), text.size()));
    return file.commit();
  }
  File file;
  std::string text;
  PRGE_TRY(file.open_shared(path));
  PRGE_TRY(file.read(text));
  Json found;
  const bool is_json = Json::parse(text, found);
  const bool is_null = found["label_dp"].kind == Json::Kind::Null;
  const bool is_same =
      is_json && found["y_pre"].text == y_pre && (is_null ? epsilon.empty() : found["label_dp"].text == epsilon);
  return is_same
      ? Error::Ok
      : fail(
            Error::InvalidExternalData,
            "the folder was emitted with other options (%s). Hint: name another folder with --out", folder.c_str());
}

} // namespace prge
