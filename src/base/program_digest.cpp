#include "base/program_digest.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "base/digest.h"

namespace shardproof {
namespace {

std::string digest_of_program() {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(program), {}};
  return fmt::format("{:016x}", digest_of(bytes.data(), bytes.size()));
}

}  // namespace

const std::string& program_digest() {
  static const std::string digest = digest_of_program();
  return digest;
}

}  // namespace shardproof
