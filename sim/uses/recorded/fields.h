// The fields of one JSON object of a recorded run, each checked when it is read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardproof::sim::recorded {

// All readers throw Error(kBadInput) with the place and the field when it is absent or of another
// type or range; `expect_only` when there is a field that is not in `known`, with those that are.
class Fields {
 public:
  Fields(std::string where, nlohmann::json object);

  bool has(const std::string& name) const;  // a field that is null counts as absent
  void expect_only(const std::vector<std::string>& known) const;
  std::vector<std::string> names() const;
  std::string text(const std::string& name) const;
  int64_t count(const std::string& name, int64_t low, int64_t high) const;
  std::vector<int64_t> counts(const std::string& name) const;  // none is below 0
  std::vector<double> numbers(const std::string& name) const;  // empty when absent
  std::vector<std::string> texts(const std::string& name) const;
  void number(const std::string& name, double& value) const;  // kept when absent
  bool flag(const std::string& name) const;
  const nlohmann::json& list(const std::string& name) const;
  Fields object(const std::string& name) const;
  const nlohmann::json& value(const std::string& name) const;
  const std::string& where() const { return where_; }
  [[noreturn]] void fail(const std::string& name, const std::string& problem) const;

 private:
  std::string where_;
  nlohmann::json object_;
};

}  // namespace shardproof::sim::recorded
