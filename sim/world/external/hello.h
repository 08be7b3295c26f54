// What a rank that another launcher started says first.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace shardproof::sim::world {

struct ExternalHello {
  int64_t rank = -1;
  std::string host;  // its name, for messages
  std::string boot;  // equal on one machine
  int64_t pid = 0;
  std::string program = {};  // program_digest()
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ExternalHello, rank, host, boot, pid, program)

// Of this process.
ExternalHello own_hello(int64_t rank);
// Unset for what is none.
std::optional<ExternalHello> decode_hello(const std::string& text);

// Equal where processes see each other under /proc: one kernel, one process namespace.
std::string boot_id();

}  // namespace shardproof::sim::world
