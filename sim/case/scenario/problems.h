// All errors of a scenario's keys at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/case/scenario/yaml_tree.h"

namespace shardproof::sim {

// Calls `read` until it does not throw, each time without the node that the last error names. A
// wrong record, skip rule or matrix row goes as a whole, so that its rest gives no errors that
// follow from the first. Returns the errors in the order of the file, at most kMaxProblems.
std::vector<PlacedError> problems_of(YamlNode root,
                                     const std::function<void(const YamlNode& root)>& read);
inline constexpr size_t kMaxProblems = 20;

// Throws the errors as one, a line for each, in the order of the file; equal ones count once. It is
// a refusal when all of them are. Returns when there are none.
void throw_all(std::vector<PlacedError> problems);

// Where the keys of a JSON file stand, for messages.
class JsonPlaces {
 public:
  // JSON is YAML, whose tree knows the line and the column of each key. Where it is not (tabs, for
  // example, JSON allows), no key has a place.
  JsonPlaces(std::string file, const std::string& text);

  // The problem of the value at `keys`, from the top: "file:line:column: <what>; <fix>". The place
  // is that of the innermost key that is there.
  PlacedError error(const std::vector<std::string>& keys, const std::string& what,
                    const std::string& fix, ErrorKind kind = ErrorKind::kBadInput) const;

 private:
  std::string file_;
  YamlNode tree_;
};

}  // namespace shardproof::sim
