// The settings of a scenario file: each key's checked value with its position in the file.
#pragma once

#include <map>
#include <string>

#include "sim/case/scenario/schema.h"

namespace shardproof::sim {

struct Setting {
  nlohmann::json value;
  int64_t line = 0, column = 0;
};

class Settings {
 public:
  Settings(const Schema& schema, std::string file) : schema_(&schema), file_(std::move(file)) {}

  // Adds every key of `map`, with blocks flattened: {parallel: {x: 1}} and {parallel.x: 1} are
  // equal. Keys in `elsewhere` are left out. Throws Error(kBadInput) for other keys that are
  // unknown (with the nearest known one), repeated or ill-typed.
  void add(const YamlNode& map, const std::vector<std::string>& elsewhere);
  // The settings of `row` replace or join these.
  void overlay(const Settings& row);

  bool given(const std::string& path) const { return settings_.count(path) != 0; }
  nlohmann::json given_values() const;  // {key: value}
  // The given value, else the table's default.
  nlohmann::json value(const std::string& path) const;
  template <class Type>
  Type get(const std::string& path) const {
    return value(path).get<Type>();
  }
  // The first given key whose path starts with `prefix` and is not in `allowed`; "" none.
  std::string given_below(const std::string& prefix,
                          const std::vector<std::string>& allowed = {}) const;
  // Throws Error(kBadInput) at the position of `path`, or at the file's start when it is not given.
  [[noreturn]] void fail(const std::string& path, const std::string& what,
                         const std::string& fix) const;
  const std::string& file() const { return file_; }
  const Schema& schema() const { return *schema_; }

 private:
  void add_block(const YamlNode& map, const std::string& block,
                 const std::vector<std::string>& elsewhere);
  void add_key(const YamlEntry& entry, const std::string& path);
  [[noreturn]] void unknown_key(const YamlEntry& entry, const std::string& block) const;

  const Schema* schema_;
  std::string file_;
  std::map<std::string, Setting> settings_;
};

// The records under `records_path` ("faults"), each as {key: checked value} with defaults.
nlohmann::json read_records(const Schema& schema, const std::string& records_path,
                            const YamlNode& list, const std::string& file);

}  // namespace shardproof::sim
