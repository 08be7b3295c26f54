// By how much the values of two runs differ, from the safetensors files that runs leave.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace shardproof::sim::report {

// Of the elements that two runs have in common.
struct Amount {
  int64_t elements = 0;   // compared
  int64_t differing = 0;  // unequal in value; two NaN are equal
  double absolute = 0;    // the largest |a - b|; infinite where one of them is not finite
  double relative = 0;    // the largest |a - b| / max(|a|, |b|)
  void add(const Amount& other);
};

// "5 of 24 elements differ, at most by 0.0012, relatively by 4e-05"
std::string amount_text(const Amount& amount);

// Of each float64 tensor that both files have with one shape, by its name. Throws Error(kBadInput)
// for a file that cannot be read.
std::map<std::string, Amount> amounts_of_files(const std::string& a, const std::string& b);

}  // namespace shardproof::sim::report
