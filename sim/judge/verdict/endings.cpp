#include "sim/judge/verdict/endings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

namespace shardproof::sim::judge {
namespace {

// Causes come before their consequences.
constexpr std::array<ResultKind, 9> kCauses = {
    ResultKind::kDied,        ResultKind::kInternal, ResultKind::kDisagreement,
    ResultKind::kThrew,       ResultKind::kInFlight, ResultKind::kDeadlock,
    ResultKind::kNeverWaited, ResultKind::kHung,     ResultKind::kAborted};

std::string rank_list(const std::vector<int64_t>& ranks) {
  const size_t shown = std::min<size_t>(ranks.size(), 8);
  const std::string text = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks",
                                       fmt::join(ranks.begin(), ranks.begin() + shown, ", "));
  return shown == ranks.size() ? text : fmt::format("{} and {} more", text, ranks.size() - shown);
}

std::string call_clause(const RankEnding& ending) {
  return ending.last_call.empty() ? "" : " (last collective: " + ending.last_call + ")";
}

// Each different message once, with the ranks that gave it.
std::string messages_of(const std::vector<RankEnding>& endings, ResultKind kind) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<int64_t>> ranks;
  for (const RankEnding& ending : endings) {
    if (ending.kind != kind) continue;
    const std::string text =
        (ending.message.empty() ? name_of(kind) : ending.message) + call_clause(ending);
    if (ranks[text].empty()) order.push_back(text);
    ranks[text].push_back(ending.rank);
  }
  std::string all;
  for (const std::string& text : order) {
    const bool everyone = ranks[text].size() == endings.size();
    all += (all.empty() ? "" : "\n") + (everyone ? text : rank_list(ranks[text]) + ": " + text);
  }
  return all;
}

// Judges a case in which some ranks refused: no other rank of what they refused may have gone on.
EndingVerdict judge_refusal(const std::vector<RankEnding>& endings, int64_t mesh_ranks) {
  const auto refusal = std::ranges::find_if(endings, is_refusal);
  const bool mesh_refused = std::ranges::all_of(endings, [&](const RankEnding& ending) {
    return ending.rank >= mesh_ranks || is_refusal(ending);
  });
  for (const RankEnding& ending : endings) {
    const bool is_alone = ending.kind == ResultKind::kFinished || ending.kind == ResultKind::kHung;
    const bool went_on = !is_refusal(ending) && (is_alone || !ending.last_call.empty());
    if (!went_on || (mesh_refused && ending.rank >= mesh_ranks)) continue;
    return {Verdict::kFailed, ResultKind::kDisagreement,
            fmt::format("rank {} refused while rank {} went on{}\nrank {}: {}", refusal->rank,
                        ending.rank, call_clause(ending), refusal->rank, refusal->message)};
  }
  const bool bad_input = std::ranges::any_of(
      endings, [](const RankEnding& ending) { return ending.kind == ResultKind::kBadInput; });
  const ResultKind kind = bad_input ? ResultKind::kBadInput : ResultKind::kRefused;
  const auto first = std::ranges::find(endings, kind, &RankEnding::kind);
  return {bad_input ? Verdict::kBadInput : Verdict::kRefused, kind, first->message};
}

}  // namespace

std::optional<EndingVerdict> judge_endings(const std::vector<RankEnding>& endings,
                                           int64_t mesh_ranks) {
  if (endings.empty()) {
    return EndingVerdict{Verdict::kInternal, ResultKind::kInternal, "the case has no rank endings"};
  }
  const auto has = [&](ResultKind kind) {
    return std::ranges::any_of(endings,
                               [&](const RankEnding& ending) { return ending.kind == kind; });
  };
  if (std::ranges::all_of(
          endings, [](const RankEnding& ending) { return ending.kind == ResultKind::kFinished; })) {
    return {};
  }
  // What the machine lacks it need not lack for all ranks; the others only saw this one go.
  const auto lacking =
      std::ranges::find_if(endings, [](const RankEnding& ending) { return ending.shortage; });
  if (lacking != endings.end()) {
    return EndingVerdict{Verdict::kBadInput, ResultKind::kBadInput, lacking->message};
  }
  // One rank's refusal ended the world: the others were aborted, or waited for a rank that left.
  const bool only_consequences = std::ranges::all_of(endings, [](const RankEnding& ending) {
    return is_refusal(ending) || ending.kind == ResultKind::kFinished ||
           ending.kind == ResultKind::kAborted || ending.kind == ResultKind::kDeadlock ||
           ending.kind == ResultKind::kHung;
  });
  if (only_consequences && std::ranges::any_of(endings, is_refusal)) {
    return judge_refusal(endings, mesh_ranks);
  }
  for (const ResultKind kind : kCauses) {
    if (!has(kind)) continue;
    return EndingVerdict{kind == ResultKind::kInternal ? Verdict::kInternal : Verdict::kFailed,
                         kind, messages_of(endings, kind)};
  }
  const auto unknown = std::ranges::find_if(endings, [](const RankEnding& ending) {
    return ending.kind != ResultKind::kFinished && !is_refusal(ending);
  });
  const ResultKind kind = unknown == endings.end() ? ResultKind::kNone : unknown->kind;
  return EndingVerdict{Verdict::kInternal, ResultKind::kInternal,
                       fmt::format("a rank ended in an unknown way: '{}'", kind)};
}

}  // namespace shardproof::sim::judge
