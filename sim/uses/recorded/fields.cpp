#include "sim/uses/recorded/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"
#include "sim/case/names.h"

namespace shardproof::sim::recorded {

using nlohmann::json;

namespace {

std::string shown(const json& value) { return printable(value.dump(), 120); }

}  // namespace

Fields::Fields(std::string where, json object)
    : where_(std::move(where)), object_(std::move(object)) {
  if (!object_.is_object()) fail("", "must be an object {...}");
}

bool Fields::has(const std::string& name) const {
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

const json& Fields::value(const std::string& name) const {
  if (!has(name)) fail(name, "is missing");
  return object_.at(name);
}

std::string Fields::text(const std::string& name) const {
  const json& given = value(name);
  if (!given.is_string()) fail(name, "must be text, not " + shown(given));
  const std::string text = given.get<std::string>();
  if (!is_printable(text))
    fail(name, "has characters that cannot be shown: " + printable(text, 120));
  return text;
}

int64_t Fields::count(const std::string& name, int64_t low, int64_t high) const {
  const json& given = value(name);
  if (!given.is_number_integer() || given < low || given > high) {
    fail(name, fmt::format("is {}; it must be an integer from {} to {}", shown(given), low, high));
  }
  return given.get<int64_t>();
}

const json& Fields::list(const std::string& name) const {
  const json& given = value(name);
  if (!given.is_array()) fail(name, "must be a list, not " + shown(given));
  return given;
}

std::vector<int64_t> Fields::counts(const std::string& name) const {
  std::vector<int64_t> read;
  for (const json& one : list(name)) {
    if (!one.is_number_integer() || one < 0 || one > (int64_t{1} << 48)) {
      fail(name, "has " + shown(one) + ", which is not a size");
    }
    read.push_back(one.get<int64_t>());
  }
  return read;
}

std::vector<double> Fields::numbers(const std::string& name) const {
  std::vector<double> read;
  if (!has(name)) return read;
  const json& given = value(name);
  for (const json& one : given.is_array() ? given : json::array({given})) {
    if (!one.is_number()) fail(name, "has " + shown(one) + ", which is not a number");
    read.push_back(one.get<double>());
  }
  return read;
}

void Fields::expect_only(const std::vector<std::string>& known) const {
  for (const std::string& name : names()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    fail(printable(name, 120), "is not a key here; " + known_names(name, known));
  }
}

std::vector<std::string> Fields::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) names.push_back(name);
  return names;
}

std::vector<std::string> Fields::texts(const std::string& name) const {
  std::vector<std::string> read;
  for (const json& one : list(name)) {
    if (!one.is_string()) fail(name, "has " + shown(one) + ", which is not text");
    read.push_back(printable(one.get<std::string>()));
  }
  return read;
}

void Fields::number(const std::string& name, double& value) const {
  const std::vector<double> read = numbers(name);
  if (read.empty()) return;
  if (read.size() != 1 || !std::isfinite(read[0])) fail(name, "must be one finite number");
  value = read[0];
}

bool Fields::flag(const std::string& name) const {
  const json& given = value(name);
  if (!given.is_boolean()) fail(name, "must be true or false, not " + shown(given));
  return given.get<bool>();
}

Fields Fields::object(const std::string& name) const {
  return Fields(where_ + ": " + name, value(name));
}

void Fields::fail(const std::string& name, const std::string& problem) const {
  throw_bad_input(name.empty() ? where_ + " " + problem : where_ + ": " + name + " " + problem,
                  "docs/recorded_runs.md has the format");
}

}  // namespace shardproof::sim::recorded
