#include "sim/world/process/control_store.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace shardproof::sim::world {
namespace {

using Json = nlohmann::json;

std::string bytes_at(const Json& request, const char* name) {
  const Json::binary_t& bytes = request.at(name).get_binary();
  return {bytes.begin(), bytes.end()};
}

std::string encoded(const Json& id, const std::string& value) {
  const auto bytes =
      Json::to_cbor({{"id", id}, {"value", Json::binary({value.begin(), value.end()})}});
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void ControlStore::ask(const std::string& text, const Answer& answer) {
  const Json request = Json::from_cbor(text);
  const std::string key = request.at("key");
  const auto reply = [answer, id = request.at("id")](const std::string& value) {
    answer(encoded(id, value));
  };
  if (request.at("op") == "get" && values_.count(key) == 0) {
    waiting_.emplace(key, reply);
    return;
  }
  reply(apply(request));
  if (values_.count(key) == 0) return;
  const auto [first, last] = waiting_.equal_range(key);
  for (auto at = first; at != last; ++at) at->second(values_[key]);
  waiting_.erase(first, last);
}

// As c10d's own stores: where the key is missing, an empty `expected` sets it, and anything else
// comes back unchanged.
std::string ControlStore::apply(const Json& request) {
  const std::string op = request.at("op"), key = request.at("key");
  const auto found = values_.find(key);
  const bool known = found != values_.end();
  if (op == "get") return found->second;
  if (op == "set") return values_[key] = bytes_at(request, "value");
  if (op == "delete") return values_.erase(key) > 0 ? "1" : "0";
  if (op == "check") return known ? "1" : "0";
  if (op == "count") return std::to_string(values_.size());
  if (op == "add") {
    const int64_t before = known ? std::stoll(found->second) : 0;
    return values_[key] = std::to_string(before + std::stoll(bytes_at(request, "value")));
  }
  SHARDPROOF_ASSERT(op == "compare_set", "an operation of the store");
  const std::string expected = bytes_at(request, "expected");
  if (known && found->second != expected) return found->second;
  if (!known && !expected.empty()) return expected;
  return values_[key] = bytes_at(request, "value");
}

}  // namespace shardproof::sim::world
