// The keys of a scenario file: those rows of the option table (sim/case/option.h) that have one.
#pragma once

#include <cstdint>
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
  std::vector<std::string> names_below(std::string_view block) const;  // what may stand in a block
  // The value of `node`, of this key's type and in its range. Throws Error(kBadInput) with its
  // place.
  static nlohmann::json checked(const Option& key, const YamlNode& node, const std::string& file);
  // The same of what a command line says behind the option's flag; that is what errors name.
  static nlohmann::json checked_flag(const Option& option, const std::string& text);
  nlohmann::json json_schema() const;  // draft 2020-12
  std::string describe_keys() const;   // one line a key

 private:
  std::vector<CaseOption> keys_;
};

}  // namespace shardproof::sim
