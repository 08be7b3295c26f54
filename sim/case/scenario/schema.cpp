#include "sim/case/scenario/schema.h"

#include <algorithm>

namespace shardproof::sim {

Schema::Schema() {
  for (const CaseOption& option : case_options()) {
    if (!option.path.empty()) keys_.push_back(option);
  }
}

const Schema& case_schema() {
  static const Schema schema;
  return schema;
}

const CaseOption* Schema::find(std::string_view path) const {
  for (const CaseOption& key : keys_) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

bool Schema::is_block(std::string_view path) const {
  const std::string prefix = std::string(path) + ".";
  return std::any_of(keys_.begin(), keys_.end(),
                     [&](const Option& key) { return key.path.starts_with(prefix); });
}

std::vector<std::string> Schema::names_below(std::string_view block) const {
  const std::string prefix = block.empty() ? "" : std::string(block) + ".";
  std::vector<std::string> names;
  for (const Option& key : keys_) {
    if (!key.path.starts_with(prefix)) continue;
    const std::string rest = key.path.substr(prefix.size());
    const std::string name = rest.substr(0, rest.find('.'));
    if (name.find('[') != std::string::npos) continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace shardproof::sim
