#include "sim/world/process/ending_codec.h"

#include <nlohmann/json.hpp>

#include "sim/world/match/call_line.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

// A text is sent as binary: a message may quote bytes that are no UTF-8.
json binary(const std::string& text) { return json::binary({text.begin(), text.end()}); }

std::string text(const json& value) {
  const auto& bytes = value.get_binary();
  return {bytes.begin(), bytes.end()};
}

json to_json(const FaultNote& note) {
  return {note.index,          note.fired,           note.step,    binary(note.call),
          binary(note.effect), binary(note.problem), note.matches, note.calls};
}

FaultNote fault_note_from(const json& item) {
  return {.index = item.at(0).get<int64_t>(),
          .fired = item.at(1).get<bool>(),
          .step = item.at(2).get<int64_t>(),
          .call = text(item.at(3)),
          .effect = text(item.at(4)),
          .problem = text(item.at(5)),
          .matches = item.at(6).get<int64_t>(),
          .calls = item.at(7).get<int64_t>()};
}

// Only the text of a message needs the ranks of its group, and a group of 1,000 ranks makes many
// thousand calls.
json to_json(const CallDigest& call) {
  Call line = call.call;
  if (!is_message(line.op)) line.group_ranks = nullptr;
  return {binary(encode_line({std::move(line)})), call.step, call.sent, call.received};
}

CallDigest call_digest_from(const json& item) {
  return {.call = decode_line(text(item.at(0))).value(),
          .step = item.at(1).get<int64_t>(),
          .sent = item.at(2).get<std::vector<uint64_t>>(),
          .received = item.at(3).get<std::vector<uint64_t>>()};
}

std::string cbor(const json& value) {
  std::string bytes;
  json::to_cbor(value, bytes);
  return bytes;
}

}  // namespace

std::string encode(const std::vector<RankEnding>& endings) {
  json list = json::array();
  for (const RankEnding& ending : endings) {
    json faults = json::array();
    for (const FaultNote& note : ending.faults) faults.push_back(to_json(note));
    json digests = json::array();
    for (const CallDigest& call : ending.digests) digests.push_back(to_json(call));
    list.push_back({ending.rank, ending.kind, binary(ending.message), binary(ending.last_call),
                    binary(ending.bytes), faults, digests});
  }
  return cbor(list);
}

std::vector<RankEnding> decode_endings(const std::string& bytes) {
  std::vector<RankEnding> endings;
  for (const json& item : json::from_cbor(bytes)) {
    endings.push_back({.rank = item.at(0).get<int64_t>(),
                       .kind = item.at(1).get<ResultKind>(),
                       .message = text(item.at(2)),
                       .last_call = text(item.at(3)),
                       .bytes = text(item.at(4))});
    for (const json& note : item.at(5)) endings.back().faults.push_back(fault_note_from(note));
    for (const json& call : item.at(6)) endings.back().digests.push_back(call_digest_from(call));
  }
  return endings;
}

std::string encode(int64_t rank, const FaultNote& note) { return cbor({rank, to_json(note)}); }

std::pair<int64_t, FaultNote> decode_fault(const std::string& bytes) {
  const json item = json::from_cbor(bytes);
  return {item.at(0).get<int64_t>(), fault_note_from(item.at(1))};
}

}  // namespace shardproof::sim
