#include "base/program_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "base/digest.h"

namespace shardproof {
namespace {

std::string digest_of_program() {
  std::ifstream program("/proc/self/exe", std::ios::binary | std::ios::ate);
  std::string bytes(static_cast<size_t>(std::max<std::streamoff>(program.tellg(), 0)), '\0');
  program.seekg(0).read(bytes.data(), std::ssize(bytes));
  return fmt::format("{:016x}", digest_of(bytes.data(), bytes.size()));
}

}  // namespace

const std::string& program_digest() {
  static const std::string digest = digest_of_program();
  return digest;
}

}  // namespace shardproof
