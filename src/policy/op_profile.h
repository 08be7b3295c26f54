// Counts and times the ops that one thread runs between start and stop.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace shardproof {

struct OpCost {
  int64_t calls = 0;
  double seconds = 0;  // wall time, including the ops that it calls
};

// Counts the ops of the thread that made it. A thread can have one at a time.
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
