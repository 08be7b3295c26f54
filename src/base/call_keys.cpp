#include "base/call_keys.h"

namespace shardproof {

CallChannel channel_of(const Call& call) {
  if (!is_message(call.op)) return {call.group, -1, -1, 0};
  const bool sends = call.op == Op::kSend;
  return {call.group, sends ? call.group_rank : call.root, sends ? call.root : call.group_rank,
          call.tag};
}

CallKey CallKeys::next(const Call& call) {
  CallChannel channel = channel_of(call);
  Position& at = positions_[channel];
  if (call.sequence <= at.last) ++at.begun_anew;
  at.last = call.sequence;
  return {std::move(channel), at.begun_anew, call.sequence};
}

}  // namespace shardproof
