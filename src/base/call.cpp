#include "base/call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardproof {

std::string list_text(const std::vector<int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

std::string op_text(const Call& call) {
  if (is_message(call.op)) {
    const auto other = static_cast<size_t>(call.root);
    const bool known = call.group_ranks && other < call.group_ranks->size();
    const int64_t rank = known ? (*call.group_ranks)[other] : call.root;
    return name_of(call.op) + (call.op == Op::kSend ? " to rank " : " from rank ") +
           std::to_string(rank);
  }
  return call.reduce ? name_of(call.op) + "(" + name_of(*call.reduce) + ")" : name_of(call.op);
}

std::string reduce_text(const Call& call) { return call.reduce ? name_of(*call.reduce) : ""; }

std::string describe(const Call& call) {
  std::string out = op_text(call) + " " + call.group;
  if (!call.dtype.empty()) out += " " + list_text(call.shape) + " " + call.dtype;
  return out + " '" + call.label + "'";
}

std::string group_name(const std::string& axis, const std::vector<int64_t>& ranks) {
  constexpr size_t kMaxListed = 16;
  bool regular = ranks.size() > kMaxListed;
  for (size_t i = 1; regular && i < ranks.size(); ++i) {
    regular = ranks[i] - ranks[i - 1] == ranks[1] - ranks[0];
  }
  if (!regular) return axis + list_text(ranks);
  return axis + "[" + std::to_string(ranks[0]) + "," + std::to_string(ranks[1]) + ".." +
         std::to_string(ranks.back()) + "]";
}

}  // namespace shardproof
