#include "comm/communicator_handle.h"

#include "base/error.h"
#include "comm/communicator.h"

namespace shardproof {

CommunicatorHandle::CommunicatorHandle(Communicator& communicator)
    : target_(communicator.handle_target_) {}

Communicator& CommunicatorHandle::operator*() const {
  if (target_->communicator != nullptr) return *target_->communicator;
  throw_bad_input("the communicator " + target_->group + " has ended before the backward",
                  "keep it until the last backward through it is done");
}

}  // namespace shardproof
