// Checked access to one JSON object of a Hugging Face config, and the problems of its readers. No
// LibTorch here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/config_problem.h"

namespace shardproof {

// Null counts as missing, as in Hugging Face configs. A value of the wrong type or out of range
// throws a ConfigProblem with its key.
class ConfigFields {
 public:
  static constexpr int64_t kMaxSize = 1 << 24;  // of any one: products of two cannot overflow

  // The whole config. `left_out`: keys (as JSON pointers) that were removed for a problem that is
  // known already; one that is needed has any value.
  ConfigFields(const nlohmann::json& config, const std::set<std::string>& left_out);
  // A config without any key, of which `read` gets the names of those that are looked for.
  explicit ConfigFields(std::set<std::string>& read);
  // The object below `key`, which is there.
  ConfigFields inside(const char* key) const;

  const nlohmann::json& object() const { return object_; }
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

  // "rope_scaling.factor"
  std::string name(const std::string& key) const;
  // JSON pointer.
  std::string pointer(const std::string& key) const { return (path_ / key).to_string(); }

  [[noreturn]] void wrong_type(const char* key, const nlohmann::json& value,
                               const char* wanted) const;
  // Throw a ConfigProblem of these keys of the object.
  [[noreturn]] void bad(const std::vector<std::string>& keys, const std::string& what,
                        const std::string& fix) const;
  [[noreturn]] void refuse(const std::vector<std::string>& keys, const std::string& what,
                           const std::string& fix) const;
  // Throws a refusal of a name that is not known, with the nearest known one.
  void refuse_unknown(const char* key, const char* what, const std::string& name,
                      const std::vector<std::string>& known) const;

 private:
  ConfigFields(const nlohmann::json& object, nlohmann::json::json_pointer path,
               const std::set<std::string>& left_out);
  bool is_left_out(const char* key) const {
    return read_ != nullptr || left_out_->contains(pointer(key));
  }
  nlohmann::json::const_iterator look_for(const char* key) const;
  [[noreturn]] void fail(ErrorKind kind, const std::vector<std::string>& keys,
                         const std::string& what, const std::string& fix) const;

  const nlohmann::json& object_;
  nlohmann::json::json_pointer path_;
  const std::set<std::string>* left_out_ = nullptr;
  std::set<std::string>* read_ = nullptr;
};

}  // namespace shardproof
