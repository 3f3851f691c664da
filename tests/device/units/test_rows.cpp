// A file of rows by hand, as docs/rows.md has it, and every way to damage one.
#include <algorithm>
#include <cstring>

#include "check.h"
#include "checksum.h"
#include "files.h"
#include "prge/rows.h"

using prge::Rows;

// Two examples of one candidate; T = 4, K = 2, V = 10.
static std::vector<uint32_t> good_words() {
  return {0, 0, /*offsets*/ 0, 6, 13, /*n, k, tokens, positions, targets*/ 2, 1, 7, 8, 1, 9, 1, 2, 5, 0, 0, 3, 4};
}

static std::string write(
    const char* name, const std::vector<uint32_t>& words, uint32_t examples = 2, uint32_t version = 1) {
  const uint32_t counts[6] = {examples, 1, 4, 2, 10, 0};
  std::string body(32 + 48, '\0');
  const uint64_t size = 96 + 4 * words.size();
  std::memcpy(&body[0], &size, 8);
  std::memcpy(&body[8], counts, sizeof(counts));
  body.append(reinterpret_cast<const char*>(words.data()), 4 * words.size());
  const uint32_t head[2] = {version, prge::crc32(body.data(), body.size())};
  const std::string bytes = "PRGEROWS" + std::string(reinterpret_cast<const char*>(head), 8) + body;
  const std::string path = check::scratch(name);
  prge::AtomicFile file(path);
  CHECK(file.open() == prge::Error::Ok && file.write(bytes.data(), bytes.size()) == prge::Error::Ok);
  CHECK(file.commit() == prge::Error::Ok);
  return path;
}

TEST(rows_are_read) {
  const auto rows = Rows::open(write("good", good_words()));
  CHECK(rows.ok() && (*rows)->num_examples() == 2 && (*rows)->num_candidates() == 1);
  const prge::Row row = (*rows)->right_row(1);
  CHECK(row.num_tokens == 1 && row.num_labels == 2);
  CHECK(row.tokens[0] == 5 && row.label_pos[1] == 0 && row.targets[0] == 3 && row.targets[1] == 4);
}

// The second example has a weight for each of its labels, 0.5 and -2; the first has none.
static std::vector<uint32_t> weighed_words() {
  std::vector<uint32_t> words = good_words();
  words[4] = 15;
  words.insert(words.end(), {0x3f000000, 0xc0000000});
  return words;
}

TEST(weights_are_read_where_a_row_has_them) {
  const auto rows = Rows::open(write("weighed", weighed_words(), 2, 2));
  CHECK(rows.ok() && (*rows)->has_weights());
  CHECK((*rows)->right_row(0).weights == nullptr);
  const prge::Row row = (*rows)->right_row(1);
  CHECK(row.weights[0] == 0.5f && row.weights[1] == -2.0f && row.targets[1] == 4);
  const auto plain = Rows::open(write("plain", good_words(), 2, 2));
  CHECK(plain.ok() && !(*plain)->has_weights() && (*plain)->fingerprint() != (*rows)->fingerprint());
}

TEST(weights_are_finite_and_of_version_two) {
  std::vector<uint32_t> words = weighed_words();
  CHECK(!Rows::open(write("old", words, 2, 1)).ok());
  CHECK(!Rows::open(write("new", words, 2, 3)).ok());
  for (const uint32_t infinite : {0x7f800000u, 0x7fc00000u}) {
    words.back() = infinite;
    CHECK(!Rows::open(write("infinite", words, 2, 2)).ok());
  }
}

TEST(no_word_can_lead_outside) {
  const std::vector<uint32_t> good = good_words();
  // Where a word stands, and what must not stand there.
  const std::pair<size_t, uint32_t> cases[] = {{0, 1}, {2, 1}, {3, 5},  {4, 14}, {5, 0},
                                               {5, 5}, {6, 3}, {7, 10}, {9, 2}};
  for (const auto& [at, value] : cases) {
    std::vector<uint32_t> words = good;
    words[at] = value;
    const auto rows = Rows::open(write("bad", words));
    CHECK(rows.error() == prge::Error::InvalidExternalData);
    CHECK(std::string(prge::last_error()).find("a row of the file is damaged") == 0);
  }
  CHECK(!Rows::open(write("none", {}, 0)).ok());
  CHECK(!Rows::open(write("many", good, 0xffffffff)).ok());
}

TEST(every_epoch_has_every_example_once) {
  prge::Order order(5, 2, 42), same(5, 2, 42), other(5, 2, 43);
  std::vector<uint32_t> seen;
  bool is_other = false;
  for (uint64_t step = 1; step <= 5; ++step) {
    const auto batch = order.step(step);
    CHECK(batch == same.step(step));
    is_other = is_other || batch != other.step(step);
    seen.insert(seen.end(), batch.begin(), batch.end());
  }
  CHECK(is_other && seen.size() == 10);
  CHECK(!std::equal(seen.begin(), seen.begin() + 5, seen.begin() + 5));
  for (const size_t epoch : {0, 5}) {
    std::sort(seen.begin() + epoch, seen.begin() + epoch + 5);
    CHECK(
        (std::vector<uint32_t>(seen.begin() + epoch, seen.begin() + epoch + 5)) ==
        (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  }
}
