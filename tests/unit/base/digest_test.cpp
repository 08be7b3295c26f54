#include "base/digest.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

using shardproof::digest_of;

namespace {

std::string numbered_bytes(size_t count) {
  std::string bytes(count, 0);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 37 + 11);
  return bytes;
}

uint64_t digest(const std::string& bytes) { return digest_of(bytes.data(), bytes.size()); }

// Whether each change of one bit gives a digest of its own.
bool every_bit_counts(std::string bytes) {
  std::set<uint64_t> seen = {digest(bytes)};
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    seen.insert(digest(bytes));
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
  return seen.size() == 8 * bytes.size() + 1;
}

}  // namespace

TEST_CASE("every bit of every byte reaches the digest", "[digest]") {
  for (const size_t size : {1, 7, 8, 9, 63, 64, 65, 200}) {  // blocks, words and bytes at the end
    CHECK(every_bit_counts(numbered_bytes(size)));
  }
}

TEST_CASE("words that change places change the digest", "[digest]") {
  const std::string bytes = numbered_bytes(256);
  for (size_t from = 0; from < 256; from += 8) {
    for (size_t to = from + 8; to < 256; to += 8) {
      std::string swapped = bytes;
      swapped.replace(from, 8, bytes, to, 8);
      swapped.replace(to, 8, bytes, from, 8);
      REQUIRE(digest(swapped) != digest(bytes));
    }
  }
}

TEST_CASE("a word among zeros or ones reaches the digest", "[digest]") {
  for (const unsigned char rest : {0x00, 0xff}) {
    CHECK(every_bit_counts(std::string(160, static_cast<char>(rest))));
  }
}

TEST_CASE("zeros of different lengths have different digests", "[digest]") {
  std::set<uint64_t> seen;
  for (size_t size = 0; size <= 300; ++size) seen.insert(digest(std::string(size, 0)));
  CHECK(seen.size() == 301);
}
