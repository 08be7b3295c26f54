// What is wrong with a Hugging Face config.json: all problems of the file at once. No LibTorch
// here.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace shardproof {

// Bad input or a refusal.
struct ConfigProblem : Error {
  ConfigProblem(Parts parts, std::vector<std::string> keys)
      : Error(std::move(parts)), keys(std::move(keys)) {}
  // Whose values it is about, as JSON pointers ("/rope_scaling/factor"): given or missing.
  std::vector<std::string> keys;
};

// Not empty. Refused when all of them are refusals.
struct ConfigError : Error {
  explicit ConfigError(std::vector<ConfigProblem> problems);
  std::vector<ConfigProblem> problems;
};

}  // namespace shardproof
