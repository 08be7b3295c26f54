#include "sim/world/process/ending_codec.h"

#include <algorithm>

#include "sim/case/cbor.h"
#include "sim/world/match/call_line.h"

namespace shardproof::sim::world {
namespace {

// The functions below write or read the fields of a record; one that is written is const.
template <class Codec, class Note>
void note_fields(Codec& codec, Note& note) {
  codec.fixed_array(8);
  codec(note.index, note.fired, note.step, note.call, note.effect, note.problem);
  codec(note.matches, note.calls);
}

// Only the text of a message needs the ranks of its group, and a group of 1,000 ranks makes many
// thousand calls.
std::string line_of(Call call) {
  if (!is_message(call.op)) call.group_ranks = nullptr;
  return encode_line({std::move(call)});
}

template <class Codec, class Digest>
void digest_fields(Codec& codec, Digest& digest) {
  std::string line;
  if constexpr (!Codec::kReads) line = line_of(digest.call);
  codec.fixed_array(5);
  codec(line, digest.step, digest.calls_before, digest.sent, digest.received);
  if constexpr (Codec::kReads) digest.call = decode_line(line).value();
}

template <class Codec, class Ending>
void ending_fields(Codec& codec, Ending& ending) {
  codec.fixed_array(8);
  codec(ending.rank, ending.shortage);
  codec.one_of(ending.kind, ResultKind::kRelation, "kind");
  codec(ending.message, ending.last_call, ending.bytes);
  codec.each(ending.faults, [&](auto& note) { note_fields(codec, note); });
  codec.each(ending.digests, [&](auto& digest) { digest_fields(codec, digest); });
}

}  // namespace

std::string encode(const std::vector<RankEnding>& endings) {
  CborWriter out;
  out.each(endings, [&](const RankEnding& ending) { ending_fields(out, ending); });
  return out.take();
}

void send_endings(std::vector<RankEnding> endings,
                  const std::function<void(const std::string&)>& send) {
  constexpr size_t kMostBytes = size_t{4} << 20;
  size_t all = 0;
  for (const RankEnding& ending : endings) all += ending.bytes.size();
  if (all > kMostBytes) {  // failures, which have no report, come together in the last part
    std::ranges::stable_partition(
        endings, [](const RankEnding& ending) { return ending.kind == ResultKind::kFinished; });
  }
  std::vector<RankEnding> part;
  size_t bytes = 0;
  for (RankEnding& ending : endings) {
    bytes += ending.bytes.size();
    part.push_back(std::move(ending));
    if (bytes < kMostBytes) continue;
    send(encode(part));
    part.clear();
    bytes = 0;
  }
  if (!part.empty()) send(encode(part));
}

std::vector<RankEnding> decode_endings(const std::string& bytes) {
  CborReader in(bytes);
  std::vector<RankEnding> endings;
  in.each(endings, [&](RankEnding& ending) { ending_fields(in, ending); });
  return endings;
}

std::string encode(int64_t rank, const FaultNote& note) {
  CborWriter out;
  out(rank);
  note_fields(out, note);
  return out.take();
}

std::pair<int64_t, FaultNote> decode_fault(const std::string& bytes) {
  CborReader in(bytes);
  std::pair<int64_t, FaultNote> fault;
  in(fault.first);
  note_fields(in, fault.second);
  return fault;
}

}  // namespace shardproof::sim::world
