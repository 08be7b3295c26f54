#include "sim/case/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace shardproof::sim {

std::string known_names(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(word, known);
  const std::string list = fmt::format("known are {}", fmt::join(known, ", "));
  return nearest.empty() ? list : fmt::format("{}; did you mean {}?", list, nearest);
}

}  // namespace shardproof::sim
