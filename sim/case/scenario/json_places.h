// Where the keys of a JSON file stand, for messages.
#pragma once

#include <string>
#include <vector>

#include "sim/case/scenario/yaml_tree.h"

namespace shardproof::sim {

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
