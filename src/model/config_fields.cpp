#include "model/config_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"

namespace shardproof {
namespace {

constexpr size_t kMaxConfigFact = 800;  // bytes of a message, which may quote the file

// A JSON value for a message: short, on one line.
std::string shown_value(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

}  // namespace

void bad_config(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kBadInput,
               .what = printable(what, kMaxConfigFact),
               .fix = printable(fix, kMaxConfigFact)});
}

void refuse_config(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kRefused,
               .what = printable(what, kMaxConfigFact),
               .fix = printable(fix, kMaxConfigFact)});
}

void refuse_unknown(const char* what, const std::string& name,
                    const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  const std::string near = nearest_name(name, known);
  refuse_config(fmt::format("{} \"{}\" is not supported", what, name),
                near.empty() ? fmt::format("supported: {}", fmt::join(known, ", "))
                             : fmt::format("the nearest that is: \"{}\"", near));
}

ConfigFields::ConfigFields(const nlohmann::json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (object.is_object()) return;
  bad_config(fmt::format("{} is {}, not an object", where_, shown_value(object)),
             "write it as {\"key\": value, ...}");
}

const nlohmann::json* ConfigFields::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::is_null(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

int64_t ConfigFields::size(const char* key, int64_t largest) const {
  if (!has(key)) {
    bad_config(fmt::format("{} has no '{}'", where_, key), "add it: a positive integer");
  }
  return size_or(key, 0, largest);
}

int64_t ConfigFields::size_or(const char* key, int64_t otherwise, int64_t largest) const {
  const int64_t value = integer_or(key, otherwise);
  if (has(key) && (value < 1 || value > largest)) {
    bad_config(fmt::format("{}: {}={} is not in 1..{}", where_, key, value, largest),
               "give a size in that range");
  }
  return value;
}

int64_t ConfigFields::integer_or(const char* key, int64_t otherwise) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return otherwise;
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!fits) wrong_type(key, *value, "an integer");
  return value->get<int64_t>();
}

double ConfigFields::number(const char* key) const {
  if (!has(key)) bad_config(fmt::format("{} has no '{}'", where_, key), "add it: a number");
  return number_or(key, 0);
}

double ConfigFields::number_or(const char* key, double otherwise) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) wrong_type(key, *value, "a number");
  const double number = value->get<double>();
  if (!std::isfinite(number)) wrong_type(key, *value, "a finite number");
  return number;
}

double ConfigFields::positive_or(const char* key, double otherwise) const {
  const double value = number_or(key, otherwise);
  if (!(value > 0)) {
    bad_config(fmt::format("{}: {}={} is not positive", where_, key, value),
               "give a positive number");
  }
  return value;
}

bool ConfigFields::flag_or(const char* key, bool otherwise) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) wrong_type(key, *value, "true or false");
  return value->get<bool>();
}

std::string ConfigFields::text_or(const char* key, const std::string& otherwise) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) wrong_type(key, *value, "a text");
  return value->get<std::string>();
}

void ConfigFields::wrong_type(const char* key, const nlohmann::json& value,
                              const char* wanted) const {
  bad_config(fmt::format("{}: '{}' is {}", where_, key, shown_value(value)),
             fmt::format("write {} there", wanted));
}

}  // namespace shardproof
