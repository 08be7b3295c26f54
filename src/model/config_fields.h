// Checked access to one JSON object of a Hugging Face config, and how its readers complain. No
// LibTorch here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardproof {

// Null counts as missing, as in Hugging Face configs. What a key holds of the wrong type, or out of
// range, is an Error(kBadInput) that names it.
class ConfigFields {
 public:
  static constexpr int64_t kMaxSize = 1
                                      << 24;  // of any one: products of two stay far from overflow

  // `where`: how messages call the object. Throws Error(kBadInput): not an object.
  ConfigFields(const nlohmann::json& object, std::string where);

  const nlohmann::json* find(const char* key) const;  // null: missing
  bool has(const char* key) const { return find(key) != nullptr; }
  bool is_null(const char* key) const;  // there, and null

  // 1..largest.
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
// Refuses a name that is not among the known ones, with the nearest that is.
void refuse_unknown(const char* what, const std::string& name,
                    const std::vector<std::string>& known);

}  // namespace shardproof
