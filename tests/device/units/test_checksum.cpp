// Published answers: FIPS 180-4's examples, and the check value of CRC-32/ISO-HDLC.
#include <algorithm>

#include "check.h"
#include "checksum.h"

using prge::crc32;
using prge::Sha256;

TEST(crc32_of_the_catalogue) {
  CHECK(crc32("123456789", 9) == 0xcbf43926u);
  CHECK(crc32("", 0) == 0);
}

TEST(crc32_goes_on) {
  CHECK(crc32("6789", 4, crc32("12345", 5)) == 0xcbf43926u);
}

TEST(sha256_of_the_standard) {
  CHECK(Sha256().finish().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Sha256().update("abc", 3).finish().hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string million(1000000, 'a');
  CHECK(
      Sha256().update(million.data(), million.size()).finish().hex() ==
      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256_does_not_see_how_it_was_fed) {
  const std::string text(200, 'x');
  Sha256 pieces;
  for (size_t at = 0; at < text.size(); at += 7) {
    pieces.update(text.data() + at, std::min<size_t>(7, text.size() - at));
  }
  CHECK(pieces.finish() == Sha256().update(text.data(), text.size()).finish());
}
