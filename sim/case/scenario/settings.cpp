#include "sim/case/scenario/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

std::string joined(const std::string& block, const std::string& name) {
  return block.empty() ? name : block + "." + name;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void Settings::add(const YamlNode& map, const std::vector<std::string>& elsewhere) {
  add_block(map, "", elsewhere);
}

void Settings::add_block(const YamlNode& map, const std::string& block,
                         const std::vector<std::string>& elsewhere) {
  if (map.kind != YamlNode::Kind::kMap) {
    const std::string lines = "write `key: value` lines";
    const std::string meant = block.empty() ? "" : schema_->path_named(block);  // tp: 2
    fail_at(file_, map.line, map.column,
            fmt::format("{} is {}; it must be a map of keys", block.empty() ? "a scenario" : block,
                        map.describe()),
            meant.empty() ? lines : fmt::format("did you mean {}? Else {}", meant, lines));
  }
  for (const YamlEntry& entry : map.entries) {
    if (block.empty() && contains(elsewhere, entry.key)) continue;
    const std::string path = joined(block, entry.key);
    if (path.find('[') == std::string::npos && schema_->find(path) != nullptr) {
      add_key(entry, path);
    } else if (schema_->is_block(path)) {
      add_block(entry.value, path, {});
    } else {
      unknown_key(entry, block);
    }
  }
}

void Settings::add_key(const YamlEntry& entry, const std::string& path) {
  const Option& key = *schema_->find(path);
  if (given(path)) {
    fail_at(file_, entry.line, entry.column,
            fmt::format("{} was given before, in line {}", path, settings_.at(path).line),
            "keep one");
  }
  const json value = key.type == KeyType::kRecords
                         ? read_records(*schema_, path, entry.value, file_)
                         : schema_->checked(key, entry.value, file_);
  settings_[path] = {value, entry.line, entry.column};
}

void Settings::unknown_key(const YamlEntry& entry, const std::string& outer) const {
  const std::string path = joined(outer, entry.key), what = fmt::format("unknown key '{}'", path);
  // The innermost block that the path names: `run.step: 2` is a key of run.
  std::string block = outer;
  for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
    if (dot > outer.size() && schema_->is_block(path.substr(0, dot))) block = path.substr(0, dot);
  }
  const std::string name = block.empty() ? path : path.substr(block.size() + 1);
  std::vector<std::string> known = schema_->names_below(block);
  if (block.empty()) known.insert(known.end(), {"matrix", "skip"});
  std::string meant = schema_->path_named(name, block);
  if (meant.empty()) {
    const std::string nearest = nearest_name(name, known);
    if (!nearest.empty()) meant = joined(block, nearest);
  }
  fail_at(file_, entry.line, entry.column, what,
          meant.empty() ? fmt::format("known {} are {}", block == outer ? "here" : "in " + block,
                                      fmt::join(known, ", "))
                        : fmt::format("did you mean {}?", meant));
}

void Settings::overlay(const Settings& row) {
  for (const auto& [path, setting] : row.settings_) settings_[path] = setting;
}

json Settings::given_values() const {
  json values = json::object();
  for (const auto& [path, setting] : settings_) values[path] = setting.value;
  return values;
}

json Settings::value(const std::string& path) const {
  const auto found = settings_.find(path);
  if (found != settings_.end()) return found->second.value;
  const Option* key = schema_->find(path);
  SHARDPROOF_ASSERT(key != nullptr, "no key " + path + " in the table");
  return key->default_value;
}

std::string Settings::given_below(const std::string& prefix,
                                  const std::vector<std::string>& allowed) const {
  for (auto at = settings_.lower_bound(prefix); at != settings_.end(); ++at) {
    if (!at->first.starts_with(prefix)) return "";
    if (!contains(allowed, at->first)) return at->first;
  }
  return "";
}

void Settings::fail(const std::string& path, const std::string& what,
                    const std::string& fix) const {
  const auto found = settings_.find(path);
  if (found == settings_.end()) fail_at(file_, 1, 1, what, fix);
  fail_at(file_, found->second.line, found->second.column, what, fix);
}

json read_records(const Schema& schema, const std::string& records_path, const YamlNode& list,
                  const std::string& file) {
  schema.checked(*schema.find(records_path), list, file);
  const std::string prefix = records_path + "[].";
  json records = json::array();
  // A single record may stand without a list.
  const std::vector<YamlNode> items =
      list.kind == YamlNode::Kind::kMap ? std::vector{list} : list.items;
  for (const YamlNode& item : items) {
    if (item.kind != YamlNode::Kind::kMap) {
      fail_at(file, item.line, item.column,
              fmt::format("an item of {} is {}; it must be a map", records_path, item.describe()),
              "write `- kind: ...`");
    }
    json record = json::object();
    std::vector<std::string> known;
    for (const Option& key : schema.keys()) {
      if (!key.path.starts_with(prefix)) continue;
      known.push_back(key.path.substr(prefix.size()));
      record[known.back()] = key.default_value;
    }
    for (const YamlEntry& entry : item.entries) {
      const Option* key = schema.find(prefix + entry.key);
      if (key == nullptr) {
        const std::string nearest = nearest_name(entry.key, known);
        fail_at(file, entry.line, entry.column,
                fmt::format("unknown key '{}' in {}", entry.key, records_path),
                nearest.empty() ? "remove it" : fmt::format("did you mean {}?", nearest));
      }
      record[entry.key] = schema.checked(*key, entry.value, file);
    }
    for (const auto& [name, value] : record.items()) {
      if (value.is_null()) {
        fail_at(file, item.line, item.column,
                fmt::format("an item of {} has no {}", records_path, name),
                fmt::format("add {}", name));
      }
    }
    records.push_back(record);
  }
  return records;
}

}  // namespace shardproof::sim
