#include "sim/cli/option_values.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace shardproof::sim::cli {

namespace {

constexpr int64_t kMaxShards = 1'000'000;

bool takes_a_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.find("FLOAT") != type.npos || type.find("NUMBER") != type.npos;
}

bool is_nan(const std::string& text) {
  char* end = nullptr;
  return std::isnan(std::strtod(text.c_str(), &end)) && *end == '\0';
}

}  // namespace

std::string bad_value(const CLI::App& command, const std::vector<std::string>& words) {
  for (size_t i = 2; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.empty()) {
      return fmt::format("an argument of {} is empty; give it a value, or leave it out",
                         command.get_name());
    }
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with('-') || name == "-") continue;
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option == nullptr) {
      if (name.starts_with("--")) return "";  // the parser names the nearest option
      continue;
    }
    const bool joined = name.size() < word.size();
    if (!joined && (option->get_items_expected_min() == 0 || i + 1 == words.size())) continue;
    const std::string& value = joined ? word.substr(name.size() + 1) : words[++i];
    if (value.empty()) {
      return fmt::format("{} is empty; give it a value, or leave it out", name);
    }
    const bool is_option =
        value.starts_with("--") ||
        (value.starts_with('-') && command.get_option_no_throw(value) != nullptr);
    if (!joined && is_option) {
      return fmt::format(
          "{0} needs a value, and {1} is an option; write {0}={1} if it is the value", name, value);
    }
    if (takes_a_number(*option) && is_nan(value)) {
      return fmt::format("{} {} is not a number; give a number", name, value);
    }
  }
  return "";
}

CLI::Validator shard_text(RunArguments& run) {
  const auto check = [&run](std::string& text) -> std::string {
    int64_t index = 0, count = 0;
    char slash = 0, rest = 0;
    const int read = std::sscanf(text.c_str(), "%ld%c%ld%c", &index, &slash, &count, &rest);
    if (read != 3 || slash != '/' || index < 1 || count < index) {
      return fmt::format("'{}' is not a shard; write I/N with 1 <= I <= N, for example 2/4", text);
    }
    if (count > kMaxShards) return fmt::format("'{}': N is at most {}", text, kMaxShards);
    run.shard = index;
    run.shard_count = count;
    return "";
  };
  return CLI::Validator(check, "", "shard");
}

}  // namespace shardproof::sim::cli
