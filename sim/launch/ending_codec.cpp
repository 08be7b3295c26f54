#include "sim/launch/ending_codec.h"

#include <nlohmann/json.hpp>

namespace shardproof::sim {

// Texts are sent as binary: a message may quote bytes that are no UTF-8.
std::string encode(const std::vector<RankEnding>& endings) {
  const auto binary = [](const std::string& text) {
    return nlohmann::json::binary({text.begin(), text.end()});
  };
  nlohmann::json list = nlohmann::json::array();
  for (const RankEnding& ending : endings) {
    list.push_back({ending.rank, ending.kind, binary(ending.message), binary(ending.last_call),
                    binary(ending.bytes)});
  }
  std::string bytes;
  nlohmann::json::to_cbor(list, bytes);
  return bytes;
}

std::vector<RankEnding> decode_endings(const std::string& bytes) {
  const auto text = [](const nlohmann::json& value) {
    const auto& binary = value.get_binary();
    return std::string(binary.begin(), binary.end());
  };
  std::vector<RankEnding> endings;
  for (const nlohmann::json& item : nlohmann::json::from_cbor(bytes)) {
    endings.push_back({.rank = item.at(0).get<int64_t>(),
                       .kind = item.at(1).get<std::string>(),
                       .message = text(item.at(2)),
                       .last_call = text(item.at(3)),
                       .bytes = text(item.at(4))});
  }
  return endings;
}

}  // namespace shardproof::sim
