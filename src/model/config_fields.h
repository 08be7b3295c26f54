// Checked access to one JSON object of a Hugging Face config, and the errors of its readers. No
// LibTorch here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardproof {

// Null counts as missing, as in Hugging Face configs. A value of the wrong type or out of range
// throws an Error(kBadInput) with its key.
class ConfigFields {
 public:
  static constexpr int64_t kMaxSize = 1 << 24;  // of any one: products of two cannot overflow

  // `where` names the object in messages. Throws Error(kBadInput) when it is not an object.
  ConfigFields(const nlohmann::json& object, std::string where);

  const nlohmann::json* find(const char* key) const;  // null: missing
  bool has(const char* key) const { return find(key) != nullptr; }
  bool is_null(const char* key) const;  // present, and null

  // An integer in 1..largest.
  int64_t size(const char* key, int64_t largest = kMaxSize) const;
  int64_t size_or(const char* key, int64_t otherwise, int64_t largest = kMaxSize) const;
  int64_t integer_or(const char* key, int64_t otherwise) const;
  double number(const char* key) const;  // finite
  double number_or(const char* key, double otherwise) const;
  double positive_or(const char* key, double otherwise) const;
  bool flag_or(const char* key, bool otherwise) const;
  std::string text_or(const char* key, const std::string& otherwise) const;

  [[noreturn]] void wrong_type(const char* key, const nlohmann::json& value,
                               const char* wanted) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

[[noreturn]] void bad_config(std::string what, std::string fix);     // Error(kBadInput)
[[noreturn]] void refuse_config(std::string what, std::string fix);  // Error(kRefused)
// Throws Error(kRefused) for a name that is not known, with the nearest known one.
void refuse_unknown(const char* what, const std::string& name,
                    const std::vector<std::string>& known);

}  // namespace shardproof
