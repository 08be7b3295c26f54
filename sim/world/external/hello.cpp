#include "sim/world/external/hello.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/program_digest.h"

namespace shardproof::sim::world {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  std::error_code hidden;
  return id + " " + std::filesystem::read_symlink("/proc/self/ns/pid", hidden).string();
}

ExternalHello own_hello(int64_t rank) {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return {rank, name, boot_id(), ::getpid(), program_digest()};
}

std::optional<ExternalHello> decode_hello(const std::string& text) try {
  return nlohmann::json::parse(text).get<ExternalHello>();
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

}  // namespace shardproof::sim::world
