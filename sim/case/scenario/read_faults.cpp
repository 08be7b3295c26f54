#include "sim/case/scenario/read_faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/case/names.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

FaultSpec fault_of(const json& record) {
  FaultSpec fault;
  fault.kind = record["kind"];
  fault.rank = record["rank"];
  fault.label = record["label"];
  fault.at_call = record["at_call"];
  fault.op = record["op"];
  fault.axis = record["axis"];
  fault.step = record["step"];
  fault.seconds = record["seconds"];
  fault.side = record["side"];
  fault.bit = record["bit"];
  fault.element = record["element"];
  return fault;
}

void check_axis(const Settings& settings, const std::string& text) {
  std::vector<std::string> known = known_axes();
  known.push_back("world");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::string axis = text.substr(begin, end - begin);
    if (std::find(known.begin(), known.end(), axis) == known.end()) {
      settings.fail("faults", fmt::format("unknown axis '{}' in a fault", axis),
                    known_names(axis, known));
    }
    begin = end + 1;
  }
}

}  // namespace

std::vector<FaultSpec> read_faults(const Settings& settings, int64_t world_size) {
  std::vector<FaultSpec> faults;
  for (const json& record : settings.value("faults")) {
    FaultSpec fault = fault_of(record);
    if (fault.rank >= world_size) {
      settings.fail("faults",
                    fmt::format("a fault is planted on rank {}, but there are {} ranks", fault.rank,
                                world_size),
                    "name a rank of the mesh");
    }
    check_axis(settings, fault.axis);
    if (fault.kind == "stale" && fault.at_call == 0) {
      settings.fail("faults", "a stale buffer at the first matching call: none was sent before it",
                    "set at_call to 1 or more");
    }
    faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace shardproof::sim
