// The keys of a scenario file: the rows of the option table (sim/case/option.h) that have one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/case/option.h"
#include "sim/case/scenario/yaml_tree.h"

namespace shardproof::sim {

class Schema {
 public:
  Schema();
  const std::vector<CaseOption>& keys() const { return keys_; }
  const CaseOption* find(std::string_view path) const;  // null: unknown
  bool is_block(std::string_view path) const;           // a prefix of keys: "parallel"
  // Names that a block may have.
  std::vector<std::string> names_below(std::string_view block) const;
  // The path of the key, or the block, that another block or another configuration has under the
  // last part of `path`, as "tp" or "expert_model_parallel_size"; "" none. `block` is where it was.
  std::string path_named(const std::string& path, const std::string& block = "") const;
  // The value of `node`. Throws Error(kBadInput) with its position for a wrong type or range.
  static nlohmann::json checked(const Option& key, const YamlNode& node, const std::string& file);
  // Checks the text after the option's flag on a command line; errors name the flag.
  static nlohmann::json checked_flag(const Option& option, const std::string& text);
  nlohmann::json json_schema() const;  // draft 2020-12
  std::string describe_keys() const;   // one line for each key

 private:
  std::vector<CaseOption> keys_;
};

// Made once.
const Schema& case_schema();

}  // namespace shardproof::sim
