// The store at which ranks of another launcher meet to make their groups. Control holds it, and a
// rank asks over its own connection, which is authenticated: the store of the launcher, which
// others may reach, is not used for it.
//
//   request   CBOR {id, op: set | get | add | compare_set | delete | check | count, key, value,
//             expected}
//   answer    CBOR {id, value}; that to `get` comes once somebody has written the key
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace shardproof::sim::world {

// Control's end.
class ControlStore {
 public:
  using Answer = std::function<void(const std::string& answer)>;
  // `answer` is called now, or from a later ask().
  void ask(const std::string& request, const Answer& answer);

 private:
  std::string apply(const nlohmann::json& request);

  std::map<std::string, std::string> values_;
  std::multimap<std::string, std::function<void(const std::string& value)>> waiting_;  // by key
};

// A rank's end: waits for the answer's value; nothing when it does not come in time (0: no limit).
using AskStore = std::function<std::optional<std::string>(nlohmann::json request,
                                                          std::chrono::milliseconds timeout)>;

}  // namespace shardproof::sim::world
