#include "shard.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "fail.h"

namespace prge {

namespace {

constexpr size_t kIdBytes = 16;
constexpr size_t kMaxShardBytes = size_t{64} << 20;
constexpr size_t kAlignment = 8;

template <typename T>
void append(std::string& out, const T* values, size_t count) {
  out.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

Error not_finite() {
  return fail(Error::InvalidState, "the model computes values that are not finite. Hint: look at the checkpoint");
}

Error append_halves(std::string& out, const std::vector<float>& acts) {
  for (const float value : acts) {
    const uint16_t bits = half_bits(value);
    if ((bits & 0x7c00) == 0x7c00) {
      return std::isfinite(value)
          ? fail(Error::InvalidState, "an activation is too large for f16. Hint: use --dtype i8")
          : not_finite();
    }
    append(out, &bits, 1);
  }
  return Error::Ok;
}

Error append_bytes(std::string& out, const std::vector<float>& acts, size_t width, std::vector<float>& scales) {
  for (size_t at = 0; at < acts.size(); at += width) {
    float largest = 0.0f;
    for (size_t d = 0; d < width; ++d) {
      if (!std::isfinite(acts[at + d])) {
        return not_finite();
      }
      largest = std::max(largest, std::fabs(acts[at + d]));
    }
    scales.push_back(largest / 127.0f);
    const float divisor = scales.back() > 0.0f ? scales.back() : 1.0f;
    for (size_t d = 0; d < width; ++d) {
      out += static_cast<char>(static_cast<int8_t>(std::nearbyint(acts[at + d] / divisor)));
    }
  }
  return Error::Ok;
}

} // namespace

RowIds::Id RowIds::next(const Row& row) {
  std::string tokens;
  for (uint32_t i = 0; i < row.num_tokens; ++i) {
    append_u64(tokens, row.tokens[i]);
  }
  std::string content;
  append_u64(content, seen_[tokens]++);
  const Digest digest = key_.of("row", content + tokens);
  Id id;
  std::copy_n(digest.bytes, id.size(), id.begin());
  return id;
}

size_t ShardShape::rows_that_fit(size_t wanted) const {
  const auto row_bytes = kIdBytes + static_cast<size_t>(4 * num_classes + num_blocks * (2 * width + 4));
  return std::max<size_t>(1, std::min(wanted, kMaxShardBytes / 2 / row_bytes));
}

size_t ShardShape::body_bytes(size_t num_rows) const {
  const size_t scales = is_i8 ? static_cast<size_t>(num_blocks) * 4 : 0;
  return ids_offset(num_rows) + num_rows * (kIdBytes + scales);
}

size_t ShardShape::ids_offset(size_t num_rows) const {
  const auto acts = static_cast<size_t>(num_blocks * width * (is_i8 ? 1 : 2));
  return num_rows * (acts + static_cast<size_t>(num_classes) * 4);
}

std::string ShardShape::header(size_t num_rows) const {
  const auto number = [](size_t value) { return std::to_string(value); };
  const auto L = static_cast<size_t>(num_blocks), D = static_cast<size_t>(width), C = static_cast<size_t>(num_classes);
  const size_t acts_end = num_rows * L * D * (is_i8 ? 1 : 2), ids_at = ids_offset(num_rows);
  const size_t ids_end = ids_at + num_rows * kIdBytes;
  const auto tensor = [&](const char* name, const char* dtype, const std::string& shape, size_t start, size_t end) {
    return ",\"" + std::string(name) + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + number(num_rows) + shape +
        "],\"data_offsets\":[" + number(start) + "," + number(end) + "]}";
  };
  std::string text = "{\"__metadata__\":{\"format\":\"prgec-side-shard-1\",\"num_blocks\":\"" + number(L) +
      "\",\"num_classes\":\"" + number(C) + "\",\"num_labels\":\"1\",\"program\":\"" + program + "\",\"width\":\"" +
      number(D) + "\",\"y_pre\":\"" + y_pre + "\"}";
  text += tensor("acts", is_i8 ? "I8" : "F16", "," + number(L) + ",1," + number(D), 0, acts_end);
  text += tensor("dy", "F32", ",1," + number(C), acts_end, ids_at);
  text += tensor("id", "U8", "," + number(kIdBytes), ids_at, ids_end);
  if (is_i8) {
    text += tensor("scales", "F32", "," + number(L) + ",1", ids_end, body_bytes(num_rows));
  }
  text += "}";
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  std::string out;
  append_u64(out, text.size());
  return out + text;
}

Result<std::string> Shard::pack(const ShardShape& shape) const {
  std::string out = shape.header(ids.size());
  out.reserve(out.size() + shape.body_bytes(ids.size()));
  std::vector<float> scales;
  PRGE_TRY(shape.is_i8 ? append_bytes(out, acts, static_cast<size_t>(shape.width), scales) : append_halves(out, acts));
  if (!std::all_of(dy.begin(), dy.end(), [](float value) { return std::isfinite(value); })) {
    return not_finite();
  }
  append(out, dy.data(), dy.size());
  append(out, ids.data(), ids.size());
  append(out, scales.data(), scales.size());
  return out;
}

void difference(const float* scores, size_t num_classes, double right, float* dy) {
  if (num_classes == 1) {
    dy[0] = static_cast<float>(right) - scores[0];
    return;
  }
  const auto count = static_cast<float>(num_classes);
  float total = scores[0];
  for (size_t c = 1; c < num_classes; ++c) {
    total += scores[c];
  }
  const float mean = total / count;
  const auto share = static_cast<float>(1.0 / static_cast<double>(num_classes));
  for (size_t c = 0; c < num_classes; ++c) {
    const float onehot = static_cast<double>(c) == right ? 1.0f : 0.0f;
    dy[c] = (onehot - share) - (scores[c] - mean);
  }
}

// To the nearest, ties to even.
uint16_t half_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits >= 0x47800000) { // 65536 and more, infinity and NaN
    return static_cast<uint16_t>(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
  }
  if (bits < 0x33000000) { // less than half of the smallest
    return static_cast<uint16_t>(sign);
  }
  uint32_t kept, shift, mantissa;
  if (bits < 0x38800000) { // a subnormal half
    shift = 126 - (bits >> 23);
    mantissa = (bits & 0x7fffff) | 0x800000;
    kept = mantissa >> shift;
  } else {
    shift = 13;
    mantissa = bits;
    kept = (bits - 0x38000000) >> shift;
  }
  const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
  kept += rest > middle || (rest == middle && (kept & 1));
  return static_cast<uint16_t>(sign | kept);
}

} // namespace prge
