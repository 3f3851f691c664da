#include <cstdio>
#include <cstring>
#include <limits>

#include "check.h"
#include "shard.h"

using prge::difference;
using prge::half_bits;

TEST(halves_round_to_the_nearest_ties_to_even) {
  const struct {
    float value;
    uint16_t bits;
  } known[] = {
      {0.0f, 0x0000},
      {-0.0f, 0x8000},
      {1.0f, 0x3c00},
      {-2.0f, 0xc000},
      {65504.0f, 0x7bff},
      {65519.0f, 0x7bff},
      {65520.0f, 0x7c00},
      {1e9f, 0x7c00},
      {std::numeric_limits<float>::infinity(), 0x7c00},
      {std::numeric_limits<float>::quiet_NaN(), 0x7e00},
      {1.0f + 1.0f / 2048, 0x3c00}, // a tie
      {1.0f + 3.0f / 2048, 0x3c02}, // another
      {1.0f + 1.001f / 2048, 0x3c01},
      {6.103515625e-05f, 0x0400}, // the smallest normal
      {6.097555160522461e-05f, 0x03ff}, // the largest subnormal
      {5.960464477539063e-08f, 0x0001}, // the smallest
      {2.9802322387695312e-08f, 0x0000}, // half of it, a tie
      {2.99e-08f, 0x0001},
      {1e-12f, 0x0000},
  };
  for (const auto& each : known) {
    CHECK(half_bits(each.value) == each.bits);
  }
}

TEST(differences) {
  const float scores[] = {1.0f, 3.0f};
  float dy[2];
  difference(scores, 2, 1, dy);
  CHECK(dy[0] == 0.5f && dy[1] == -0.5f); // 0 - 1/2 - (1 - 2), 1 - 1/2 - (3 - 2)
  difference(scores, 1, 3.5, dy);
  CHECK(dy[0] == 2.5f);
}

TEST(headers_say_where_tensors_are) {
  prge::ShardShape shape{"ab", "secret", 2, 8, 3, false};
  const std::string header = shape.header(5);
  CHECK(header.size() % 8 == 0);
  CHECK(header.find("\"y_pre\":\"secret\"") != std::string::npos);
  CHECK(header.find("\"acts\":{\"dtype\":\"F16\",\"shape\":[5,2,1,8],\"data_offsets\":[0,160]}") != std::string::npos);
  CHECK(header.find("\"id\":{\"dtype\":\"U8\",\"shape\":[5,16],\"data_offsets\":[220,300]}") != std::string::npos);
  CHECK(shape.body_bytes(5) == 300);
  shape.is_i8 = true;
  CHECK(
      shape.header(5).find("\"scales\":{\"dtype\":\"F32\",\"shape\":[5,2,1],\"data_offsets\":[220,260]}") !=
      std::string::npos);
  CHECK(shape.body_bytes(5) == 260);
}

TEST(equal_rows_have_names_of_their_own) {
  const std::string path = check::scratch("key");
  FILE* file = std::fopen(path.c_str(), "wb");
  for (int i = 0; i < 32; ++i) {
    std::fputc(i, file);
  }
  std::fclose(file);
  const auto key = prge::DeviceKey::open(path);
  CHECK(key.ok());
  prge::RowIds ids(*key);
  const uint32_t tokens[] = {7, 8}, zero = 0;
  const prge::Row row{tokens, &zero, tokens, 2, 1};
  const auto first = ids.next(row), second = ids.next(row);
  CHECK(first != second);
  CHECK(prge::RowIds(*key).next(row) == first);
}

TEST(what_is_not_finite_is_not_packed) {
  prge::Shard shard;
  shard.ids.resize(1);
  shard.dy = {0.0f, 0.0f};
  prge::ShardShape shape{"ab", "secret", 1, 2, 2, false};
  for (const float bad : {70000.0f, std::numeric_limits<float>::infinity()}) {
    shard.acts = {1.0f, bad};
    CHECK(!shard.pack(shape).ok());
  }
  shape.is_i8 = true;
  CHECK(!shard.pack(shape).ok());
  shard.acts = {1.0f, 70000.0f};
  CHECK(shard.pack(shape).ok());
}
