#include "sim/world/calls/fault_selection.h"

#include <algorithm>

namespace shardproof::sim {
namespace {

bool contributes(const Call& call) {
  if (call.op == Op::kRecv || call.op == Op::kBarrier) return false;
  const bool from_root = call.op == Op::kBroadcast || call.op == Op::kScatter;
  if (from_root && call.root != call.group_rank) return false;
  return call.bytes > 0;
}

bool receives(const Call& call) {
  if (call.op == Op::kSend || call.op == Op::kBarrier) return false;
  return call.op != Op::kGather || call.root == call.group_rank;
}

bool sums(const Call& call) {
  return call.reduce == ReduceOp::kSum || call.reduce == ReduceOp::kAvg;
}

bool can_act(const FaultSpec& fault, const Call& call) {
  if (fault.kind == FaultKind::kDrop || fault.kind == FaultKind::kStale) return contributes(call);
  if (fault.kind == FaultKind::kDuplicate) return contributes(call) && sums(call);
  if (fault.kind != FaultKind::kCorrupt) return true;
  return fault.side == FaultSide::kOutput ? receives(call) : contributes(call);
}

}  // namespace

bool occurs_in(std::string_view text, std::string_view pattern) {
  size_t from = 0;
  while (!pattern.empty()) {
    const size_t star = std::min(pattern.find('*'), pattern.size());
    const size_t found = text.find(pattern.substr(0, star), from);
    if (found == std::string_view::npos) return false;
    from = found + star;
    pattern.remove_prefix(std::min(star + 1, pattern.size()));
  }
  return true;
}

bool concerns(const FaultSpec& fault, const Call& call, int64_t step) {
  const std::string_view group = call.group;
  return (fault.op.empty() || fault.op == name_of(call.op)) &&
         (fault.axis.empty() || fault.axis == group.substr(0, group.find('['))) &&
         (fault.step == 0 || fault.step == step) && occurs_in(call.label, fault.label) &&
         can_act(fault, call);
}

}  // namespace shardproof::sim
