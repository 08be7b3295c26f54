// The keys of a scenario file, written once as a table: it drives parsing, `list --keys` and the
// JSON Schema for editors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/case/scenario/yaml_tree.h"

namespace shardproof::sim {

enum class KeyType {
  kText,
  kInteger,
  kNumber,
  kBool,
  kName,        // one of `choices`
  kNames,       // one of `choices`, or a list of them
  kIntegers,    // a list
  kTexts,       // a list
  kNumberPair,  // a list of two
  kMap,         // free keys, checked by whoever reads it
  kRecords,     // a list of maps; their keys are in the table as "faults[].kind"
};

struct SchemaKey {
  std::string path;  // "parallel.tensor_parallel_size"
  KeyType type;
  nlohmann::json default_value;  // null: none
  std::string doc;
  double low = 0, high = 0;  // of numbers, and of each number of a list
  std::vector<std::string> choices = {};
  bool nullable = false;        // `null` may be written, with its own meaning
  std::string short_name = {};  // in the names of swept cases; "": the last part of the path
  std::vector<std::string> of_bool = {};  // kName: the choices that false and true stand for
};

class Schema {
 public:
  Schema();
  const std::vector<SchemaKey>& keys() const { return keys_; }
  const SchemaKey* find(std::string_view path) const;  // null: unknown
  bool is_block(std::string_view path) const;          // a prefix of keys: "parallel"
  std::vector<std::string> names_below(std::string_view block) const;  // what may stand in a block
  // The value of `node`, of this key's type and in its range. Throws Error(kBadInput) with its
  // place.
  nlohmann::json checked(const SchemaKey& key, const YamlNode& node, const std::string& file) const;
  nlohmann::json json_schema() const;  // draft 2020-12
  std::string describe_keys() const;   // one line a key

 private:
  std::vector<SchemaKey> keys_;
};

}  // namespace shardproof::sim
