#include "sim/case/record/golden_blob.h"

#include <fmt/format.h>

#include "base/error.h"

namespace shardproof::sim {
namespace {

[[noreturn]] void not_a_golden(const std::string& why) {
  throw_bad_input("not a golden record: " + why, "make it again (--no-cache)");
}

uint64_t content_digest(std::string_view bytes) {  // FNV-1a
  uint64_t digest = 0xcbf29ce484222325;
  for (const char byte : bytes) {
    digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return digest;
}

constexpr size_t kSealBytes = 24;

}  // namespace

std::string_view IndexReader::take_bytes(size_t count) {
  if (count > rest_.size()) {
    not_a_golden(fmt::format("its index ends {} bytes early", count - rest_.size()));
  }
  const std::string_view part = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return part;
}

std::string_view golden_index(std::string_view blob) {
  if (blob.size() < 8 + kSealBytes) not_a_golden(fmt::format("it has {} bytes", blob.size()));
  IndexReader seal(blob.substr(blob.size() - kSealBytes));
  const auto digest = seal.take<uint64_t>();
  const auto length = seal.take<uint64_t>();
  if (seal.take<uint64_t>() != kGoldenMagic) not_a_golden("it does not end with an index");
  if (length > blob.size() - 8 - kSealBytes) {
    not_a_golden(fmt::format("its index claims {} of {} bytes", length, blob.size()));
  }
  const std::string_view content = blob.substr(blob.size() - kSealBytes - length, length);
  if (content_digest(content) != digest) not_a_golden("its index is damaged");
  return content;
}

std::string sealed_index(const std::string& content) {
  IndexWriter seal;
  seal.put(content_digest(content));
  seal.put(static_cast<uint64_t>(content.size()));
  seal.put(kGoldenMagic);
  return content + seal.bytes();
}

}  // namespace shardproof::sim
