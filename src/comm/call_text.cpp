// Calls in words.
#include "comm/call_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/communicator.h"

namespace shardproof {

std::string group_name(const std::string& axis, const std::vector<int64_t>& ranks) {
  constexpr size_t kMaxListed = 16;
  if (ranks.size() > kMaxListed) {
    const int64_t step = ranks[1] - ranks[0];
    bool regular = true;
    for (size_t i = 1; i < ranks.size(); ++i) regular = regular && ranks[i] - ranks[i - 1] == step;
    if (regular) return fmt::format("{}[{},{}..{}]", axis, ranks[0], ranks[1], ranks.back());
  }
  return fmt::format("{}[{}]", axis, fmt::join(ranks, ","));
}

std::string describe_call(const CollectiveCall& call) {
  const std::string op =
      call.reduce_op.empty() ? call.op : fmt::format("{}({})", call.op, call.reduce_op);
  if (call.op == "barrier") return fmt::format("{} {} {}", op, call.group, call.label);
  return fmt::format("{} {} [{}] {} {}", op, call.group, fmt::join(call.shape, ","), call.dtype,
                     call.label);
}

const char* reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAvg: return "avg";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kProduct: return "product";
  }
  return "?";
}

}  // namespace shardproof
