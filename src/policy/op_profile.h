// Which ops one thread runs between start and stop, how often and for how long.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace shardproof {

struct OpCost {
  int64_t calls = 0;
  double seconds = 0;  // wall time, ops that it calls included
};

// Counts the ops of the thread that made it, while it lives; one at a time on a thread.
class OpProfile {
 public:
  OpProfile();
  ~OpProfile();
  OpProfile(const OpProfile&) = delete;
  OpProfile& operator=(const OpProfile&) = delete;
  const std::map<std::string, OpCost>& costs() const;  // by op: "aten::mm"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardproof
