#include "base/program_digest.h"

#include <fmt/format.h>

#include <fstream>
#include <vector>

#include "base/digest.h"
#include "base/seed.h"

namespace shardproof {
namespace {

std::string digest_of_program() {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  std::vector<char> piece(1 << 18);
  uint64_t digest = 0;
  do {
    program.read(piece.data(), std::ssize(piece));
    digest = mix_bits(digest + digest_of(piece.data(), static_cast<size_t>(program.gcount())));
  } while (program);
  return fmt::format("{:016x}", digest);
}

}  // namespace

const std::string& program_digest() {
  static const std::string digest = digest_of_program();
  return digest;
}

}  // namespace shardproof
