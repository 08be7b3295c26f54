// A pointer to a communicator for an owner that may outlive it, such as an autograd graph.
#pragma once

#include <memory>
#include <string>

namespace shardproof {

class Communicator;

class CommunicatorHandle {
 public:
  CommunicatorHandle(Communicator& communicator);  // NOLINT: implicit, in place of a reference
  // Throws Error(kBadInput) when the communicator has ended.
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
