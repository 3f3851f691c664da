#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "files.h"
#include "privacy.h"

namespace {

prge::DeviceKey some_key() {
  const std::string path = check::scratch("privacy-key");
  FILE* file = std::fopen(path.c_str(), "wb");
  for (int i = 0; i < 32; ++i) {
    std::fputc(i, file);
  }
  std::fclose(file);
  return *prge::DeviceKey::open(path);
}

} // namespace

TEST(epsilon_is_written_as_python_writes_it) {
  CHECK(prge::RandomisedResponse::parse("2", 2)->epsilon() == "2.0");
  CHECK(prge::RandomisedResponse::parse("1e2", 2)->epsilon() == "100.0");
  CHECK(prge::RandomisedResponse::parse("0.1", 2)->epsilon() == "0.1");
  CHECK(prge::RandomisedResponse::parse(".0001", 2)->epsilon() == "0.0001");
}

TEST(impossible_epsilons_are_refused) {
  for (const char* text : {"", "0", "-1", "nan", "inf", "2x", "1e-5", "1e9"}) {
    CHECK(!prge::RandomisedResponse::parse(text, 2).ok());
  }
  CHECK(!prge::RandomisedResponse::parse("2", 1).ok());
}

TEST(labels_are_kept_as_often_as_epsilon_says) {
  const prge::DeviceKey key = some_key();
  const auto response = prge::RandomisedResponse::parse("1", 3);
  int kept = 0, others[3] = {};
  const int count = 20000;
  for (int i = 0; i < count; ++i) {
    prge::RowIds::Id id{};
    id[0] = static_cast<uint8_t>(i);
    id[1] = static_cast<uint8_t>(i >> 8);
    const size_t said = response->say(key, id, 1);
    CHECK(said < 3 && said == response->say(key, id, 1));
    kept += said == 1;
    ++others[said];
  }
  const double expected = std::exp(1.0) / (std::exp(1.0) + 2);
  CHECK(std::fabs(kept / static_cast<double>(count) - expected) < 0.02);
  CHECK(std::abs(others[0] - others[2]) < count / 25);
  CHECK(prge::RandomisedResponse::parse("900", 3)->say(key, prge::RowIds::Id{}, 2) == 2);
}

TEST(a_secret_head_does_not_see_the_scale) {
  const prge::SecretHead head(some_key(), 3, 300);
  std::vector<float> acts, larger;
  for (int d = 0; d < 300; ++d) {
    acts.push_back(std::sin(static_cast<float>(d)));
    larger.push_back(16.0f * acts.back());
  }
  const auto scores = head.scores(acts.data()), same = head.scores(larger.data());
  CHECK(scores.size() == 3 && scores[0] != scores[1] && scores[1] != scores[2]);
  for (size_t c = 0; c < 3; ++c) {
    CHECK(std::fabs(scores[c]) < 5.0f && std::fabs(scores[c] - same[c]) < 1e-5f);
  }
}

TEST(a_folder_keeps_how_its_labels_were_said) {
  const std::string folder = check::scratch("privacy-folder");
  CHECK(prge::make_folder(folder) == prge::Error::Ok);
  CHECK(prge::keep_local(folder, "candidates", "2.0") == prge::Error::Ok);
  CHECK(prge::keep_local(folder, "candidates", "2.0") == prge::Error::Ok);
  CHECK(prge::keep_local(folder, "candidates", "") != prge::Error::Ok);
  CHECK(prge::keep_local(folder, "secret", "2.0") != prge::Error::Ok);
}
