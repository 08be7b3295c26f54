#include "sim/world/calls/fault_selection.h"

#include <algorithm>

#include "sim/world/calls/spoil.h"

namespace shardproof::sim {

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
         can_spoil(fault, call);
}

}  // namespace shardproof::sim
