#include "sim/world/external/store_questions.h"

#include <nlohmann/json.hpp>

namespace shardproof::sim::world {

std::optional<std::string> StoreQuestions::ask(nlohmann::json request,
                                               std::chrono::milliseconds timeout) {
  std::future<std::string> answer;
  {
    const Lock lock(mutex_);
    request["id"] = ++last_id_;
    answer = open_[last_id_].get_future();
  }
  const auto bytes = nlohmann::json::to_cbor(request);
  send_({bytes.begin(), bytes.end()});
  if (timeout.count() == 0) return answer.get();
  if (answer.wait_for(timeout) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

void StoreQuestions::answered(const std::string& text) {
  const nlohmann::json answer = nlohmann::json::from_cbor(text);
  const nlohmann::json::binary_t& value = answer.at("value").get_binary();
  const Lock lock(mutex_);
  const auto found = open_.find(answer.at("id").get<uint64_t>());
  if (found == open_.end()) return;
  found->second.set_value({value.begin(), value.end()});
  open_.erase(found);
}

}  // namespace shardproof::sim::world
