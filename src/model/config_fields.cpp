#include "model/config_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/utf8.h"

namespace shardproof {
namespace {

const nlohmann::json kNoKeys = nlohmann::json::object();
constexpr size_t kMaxConfigFact = 800;  // bytes of a message, which may quote the file

// Of a key that is left out. As many heads as any family's default of key and value heads divides,
// and of an even size.
int64_t any_size(std::string_view key) {
  return key == "hidden_size" ? 1024 : key == "num_attention_heads" ? 64 : 2;
}

// A JSON value for a message: short, on one line.
std::string shown_value(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

Error::Parts joined_parts(const std::vector<ConfigProblem>& problems) {
  SHARDPROOF_ASSERT(!problems.empty(), "an error of a config without a problem");
  Error::Parts all{.kind = ErrorKind::kRefused, .what = "", .fix = problems.back().fix()};
  for (const ConfigProblem& problem : problems) {
    if (problem.kind() == ErrorKind::kBadInput) all.kind = ErrorKind::kBadInput;
    const bool last = &problem == &problems.back();
    all.what += "config.json: " + (last ? problem.fact() : problem.what() + std::string("\n"));
  }
  return all;
}

}  // namespace

ConfigError::ConfigError(std::vector<ConfigProblem> problems)
    : Error(joined_parts(problems)), problems(std::move(problems)) {}

ConfigFields::ConfigFields(const nlohmann::json& config, const std::set<std::string>& left_out)
    : object_(config), left_out_(&left_out) {
  if (config.is_object()) return;
  bad({}, fmt::format("it is {}, not an object", shown_value(config)),
      "write it as {\"key\": value, ...}");
}

ConfigFields::ConfigFields(const nlohmann::json& object, nlohmann::json::json_pointer path,
                           const std::set<std::string>& left_out)
    : object_(object), path_(std::move(path)), left_out_(&left_out) {}

ConfigFields::ConfigFields(std::set<std::string>& read) : object_(kNoKeys), read_(&read) {}

ConfigFields ConfigFields::inside(const char* key) const {
  const nlohmann::json& value = *find(key);
  if (!value.is_object()) {
    bad({key}, fmt::format("{} is {}, not an object", name(key), shown_value(value)),
        "write it as {\"key\": value, ...}");
  }
  return ConfigFields(value, path_ / key, *left_out_);
}

const nlohmann::json* ConfigFields::find(const char* key) const {
  const auto found = look_for(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::is_null(const char* key) const {
  const auto found = look_for(key);
  return found != object_.end() && found->is_null();
}

nlohmann::json::const_iterator ConfigFields::look_for(const char* key) const {
  if (read_ != nullptr) read_->insert(key);
  return object_.find(key);
}

int64_t ConfigFields::size(const char* key, int64_t largest) const {
  if (has(key)) return size_or(key, 0, largest);
  if (is_left_out(key)) return any_size(key);
  bad({key}, fmt::format("'{}' is missing", name(key)), "add it: a positive integer");
}

int64_t ConfigFields::size_or(const char* key, int64_t otherwise, int64_t largest) const {
  const int64_t value = integer_or(key, otherwise);
  if (has(key) && (value < 1 || value > largest)) {
    bad({key}, fmt::format("{}={} is not in 1..{}", name(key), value, largest),
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
  if (has(key)) return number_or(key, 0);
  if (is_left_out(key)) return 1;
  bad({key}, fmt::format("'{}' is missing", name(key)), "add it: a number");
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
    bad({key}, fmt::format("{}={} is not positive", name(key), value), "give a positive number");
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

std::string ConfigFields::name(const std::string& key) const {
  std::string text;
  for (auto path = path_; !path.empty(); path = path.parent_pointer()) {
    text = path.back() + "." + text;
  }
  return text + key;
}

void ConfigFields::wrong_type(const char* key, const nlohmann::json& value,
                              const char* wanted) const {
  bad({key}, fmt::format("'{}' is {}", name(key), shown_value(value)),
      fmt::format("write {} there", wanted));
}

void ConfigFields::bad(const std::vector<std::string>& keys, const std::string& what,
                       const std::string& fix) const {
  fail(ErrorKind::kBadInput, keys, what, fix);
}

void ConfigFields::refuse(const std::vector<std::string>& keys, const std::string& what,
                          const std::string& fix) const {
  fail(ErrorKind::kRefused, keys, what, fix);
}

void ConfigFields::refuse_unknown(const char* key, const char* what, const std::string& name,
                                  const std::vector<std::string>& known) const {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  const std::string near = nearest_name(name, known);
  refuse({key}, fmt::format("{} \"{}\" is not supported", what, name),
         near.empty() ? fmt::format("supported: {}", fmt::join(known, ", "))
                      : fmt::format("the nearest that is: \"{}\"", near));
}

void ConfigFields::fail(ErrorKind kind, const std::vector<std::string>& keys,
                        const std::string& what, const std::string& fix) const {
  std::vector<std::string> pointers;
  for (const std::string& key : keys) pointers.push_back(pointer(key));
  throw ConfigProblem({.kind = kind,
                       .what = printable(what, kMaxConfigFact),
                       .fix = printable(fix, kMaxConfigFact)},
                      std::move(pointers));
}

}  // namespace shardproof
