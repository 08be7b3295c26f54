// A pointer to a communicator that knows when it has ended: for what may outlive it, such as an
// autograd graph.
#pragma once

#include <memory>
#include <string>

namespace shardproof {

class Communicator;

class CommunicatorHandle {
 public:
  CommunicatorHandle(Communicator& communicator);  // NOLINT: wherever a reference would be kept
  // Throws Error(kBadInput): the communicator has ended.
  Communicator& operator*() const;
  Communicator* operator->() const { return &**this; }

 private:
  friend class Communicator;
  struct Target {
    Communicator* communicator;  // null: it has ended
    std::string group;
  };
  std::shared_ptr<const Target> target_;
};

}  // namespace shardproof
