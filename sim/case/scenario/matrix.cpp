#include "sim/case/scenario/matrix.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/utf8.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

// The last part of a key's path, or its short name.
std::string short_name(const Option& key) {
  if (!key.short_name.empty()) return key.short_name;
  const size_t dot = key.path.rfind('.');
  return dot == std::string::npos ? key.path : key.path.substr(dot + 1);
}

std::string value_label(const json& value, size_t index) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object()) return std::to_string(index);
  if (!value.is_array()) return value.dump();
  std::string label;
  for (const json& item : value) label += (label.empty() ? "" : "-") + value_label(item, index);
  return label;
}

class MatrixReader {
 public:
  MatrixReader(const Schema& schema, const std::string& file) : schema_(schema), file_(file) {}

  std::vector<MatrixRow> read_list(const YamlEntry& entry) {
    const YamlNode& list = entry.value;
    if (list.kind != YamlNode::Kind::kList || list.items.empty()) {
      fail_at(file_, list.line, list.column,
              fmt::format("matrix.{} is {}; it must be a list of at least one item", entry.key,
                          list.kind == YamlNode::Kind::kList ? "an empty list" : list.describe()),
              "write [value, value]");
    }
    if (static_cast<int64_t>(list.items.size()) > kMaxCases) too_many(entry, list.items.size());
    const bool is_key =
        entry.key.find('[') == std::string::npos && schema_.find(entry.key) != nullptr;
    if (!is_key && list.items.front().kind != YamlNode::Kind::kMap) unknown_list(entry);
    std::vector<MatrixRow> rows;
    std::set<std::string> labels;
    for (size_t i = 0; i < list.items.size(); ++i) {
      rows.push_back(is_key ? key_row(entry, list.items[i], i) : coupled_row(entry, list.items[i]));
      check_label(entry, list.items[i], rows.back().label);
      if (!labels.insert(rows.back().label).second) {
        fail_at(file_, list.items[i].line, list.items[i].column,
                fmt::format("matrix.{} has {} twice", entry.key, rows.back().label), "keep one");
      }
    }
    return rows;
  }

  [[noreturn]] void too_many(const YamlEntry& entry, size_t count) const {
    fail_at(file_, entry.line, entry.column,
            fmt::format("the matrix has {} cases or more at this key", count),
            fmt::format("a scenario has at most {}", kMaxCases));
  }

 private:
  MatrixRow key_row(const YamlEntry& entry, const YamlNode& value, size_t index) const {
    const Option& key = *schema_.find(entry.key);
    if (key.path == "name" || key.path == "world.backend") {
      fail_at(file_, entry.line, entry.column, fmt::format("{} is not swept", key.path),
              "each scenario already runs on every backend");
    }
    YamlNode map;
    map.kind = YamlNode::Kind::kMap;
    map.entries.push_back({entry.key, value.line, value.column, value});
    MatrixRow row{"", Settings(schema_, file_), ""};
    row.settings.add(map, {});
    row.label = short_name(key) + "=" + value_label(row.settings.value(key.path), index);
    return row;
  }

  // Labels become parts of names, so they must be printable.
  void check_label(const YamlEntry& entry, const YamlNode& row, const std::string& label) const {
    if (is_printable(label)) return;
    fail_at(
        file_, row.line, row.column,
        fmt::format("a row of matrix.{} is named '{}', which cannot be shown", entry.key, label),
        "leave control characters out");
  }

  MatrixRow coupled_row(const YamlEntry& entry, const YamlNode& map) const {
    if (map.kind != YamlNode::Kind::kMap) {
      fail_at(file_, map.line, map.column,
              fmt::format("a row of matrix.{} is {}; it must be a map", entry.key, map.describe()),
              "write {name: short, key: value}");
    }
    const YamlNode* name = map.find("name");
    if (name == nullptr || name->kind != YamlNode::Kind::kScalar || name->text.empty()) {
      fail_at(file_, map.line, map.column, fmt::format("a row of matrix.{} has no name", entry.key),
              "add name: short, it goes into the names of the cases");
    }
    MatrixRow row{name->text, Settings(schema_, file_), ""};
    row.settings.add(map, {"name", "skip"});
    if (const YamlNode* skip = map.find("skip")) {
      if (!skip->value().is_string()) {
        fail_at(file_, skip->line, skip->column, "skip of a row must be a reason in words",
                "say why the row is skipped");
      }
      row.skip = skip->text;
    }
    return row;
  }

  [[noreturn]] void unknown_list(const YamlEntry& entry) const {
    std::vector<std::string> paths;
    for (const Option& key : schema_.keys()) paths.push_back(key.path);
    std::string nearest = schema_.path_named(entry.key);
    if (nearest.empty()) nearest = nearest_name(entry.key, paths);
    std::string fix = "sweep a key by its whole path, or give rows {name: .., key: value}";
    if (entry.key.starts_with("options.")) {
      fix = "options of a workload are swept in rows: {name: .., options: {..}}";
    } else if (!nearest.empty()) {
      fix = fmt::format("did you mean {}?", nearest);
    }
    fail_at(file_, entry.line, entry.column, fmt::format("unknown key '{}' in matrix", entry.key),
            fix);
  }

  const Schema& schema_;
  const std::string& file_;
};

MatrixRow joined_row(const MatrixRow& left, const MatrixRow& right) {
  const json given = right.settings.given_values();
  for (const auto& [path, value] : given.items()) {
    if (!left.settings.given(path)) continue;
    right.settings.fail(path, fmt::format("two lists of the matrix set {}", path),
                        "set it in one of them, or couple both in one list of rows");
  }
  MatrixRow row = left;
  row.label += (row.label.empty() ? "" : ",") + right.label;
  row.settings.overlay(right.settings);
  if (row.skip.empty()) row.skip = right.skip;
  return row;
}

}  // namespace

std::vector<MatrixRow> expand_matrix(const Schema& schema, const std::string& file,
                                     const YamlNode* matrix) {
  std::vector<MatrixRow> rows = {{"", Settings(schema, file), ""}};
  if (matrix == nullptr) return rows;
  if (matrix->kind != YamlNode::Kind::kMap) {
    fail_at(file, matrix->line, matrix->column,
            fmt::format("matrix is {}; it must be a map of lists", matrix->describe()),
            "write `parallel.tensor_parallel_size: [1, 2]` below it");
  }
  MatrixReader reader(schema, file);
  for (const YamlEntry& entry : matrix->entries) {
    const std::vector<MatrixRow> list = reader.read_list(entry);
    const size_t count = rows.size() * list.size();
    if (count > static_cast<size_t>(kMaxCases)) reader.too_many(entry, count);
    std::vector<MatrixRow> product;
    product.reserve(count);
    for (const MatrixRow& left : rows) {
      for (const MatrixRow& right : list) product.push_back(joined_row(left, right));
    }
    rows = std::move(product);
  }
  std::set<std::string> names;
  for (const MatrixRow& row : rows) {
    if (names.insert(row.label).second) continue;
    fail_at(file, matrix->line, matrix->column,
            fmt::format("two cases of the matrix have the name '{}'", row.label),
            "give its rows names without commas");
  }
  return rows;
}

}  // namespace shardproof::sim
