// Groups the calls by group and number, then compares each copy with its original.
#include "sim/judge/verdict/call_digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace shardproof::sim::judge {
namespace {

// The members of one call whose digests are known, by rank within the group.
struct Met {
  std::map<int64_t, const CallDigest*> members;
  // Step, and the number of calls that the first rank had made.
  std::tuple<int64_t, size_t> when = {};
};

std::string call_text(const Call& call) {
  return fmt::format("{} (call {} of {})", describe(call), call.sequence, call.group);
}

DigestFinding finding_of(const CallDigest& call, std::vector<int64_t> ranks, std::string message) {
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return {.step = call.step,
          .message = std::move(message),
          .ranks = std::move(ranks),
          .made = call.call};
}

// The results that the fewest members hold are wrong. When two are held equally often, nothing
// tells which of them is.
std::optional<DigestFinding> unequal_results(const Met& met) {
  std::map<std::vector<uint64_t>, std::vector<int64_t>> holders;
  for (const auto& [place, member] : met.members) {
    holders[member->received].push_back(member->call.rank);
  }
  if (holders.size() < 2) return std::nullopt;
  std::vector<std::vector<int64_t>> classes;
  for (auto& [digest, ranks] : holders) classes.push_back(std::move(ranks));
  std::ranges::sort(classes, [](const auto& a, const auto& b) {
    return std::tuple(a.size(), b.front()) < std::tuple(b.size(), a.front());
  });
  const std::vector<int64_t> most = classes.back();
  std::vector<int64_t> others;
  for (size_t i = 0; i + 1 < classes.size(); ++i) {
    others.insert(others.end(), classes[i].begin(), classes[i].end());
  }
  std::ranges::sort(others);
  const CallDigest& call = *met.members.begin()->second;
  const auto ranks_of = [](const std::vector<int64_t>& ranks) {
    return fmt::format("{} {}", ranks.size() > 1 ? "ranks" : "rank", fmt::join(ranks, ", "));
  };
  const bool are_even = classes.size() == 2 && others.size() == most.size();
  const std::string message =
      fmt::format("{} {} another result of {} than {}",
                  are_even ? fmt::format("either {} or {}", ranks_of(others), ranks_of(most))
                           : ranks_of(others),
                  others.size() > 1 ? "hold" : "holds", call_text(call.call),
                  are_even ? (most.size() > 1 ? "the others" : "the other") : ranks_of(most));
  std::vector<int64_t> named = others;
  named.push_back(most.front());
  return finding_of(call, named, message);
}

std::optional<DigestFinding> altered_copy(const CallDigest& to, const CallDigest& from,
                                          uint64_t received) {
  const size_t part = from.sent.size() == 1 ? 0 : static_cast<size_t>(to.call.group_rank);
  if (part >= from.sent.size() || from.sent[part] == received) return std::nullopt;
  const int64_t receiver = to.call.rank, sender = from.call.rank;
  const std::string message =
      receiver == sender
          ? fmt::format("rank {} received from itself something else than it sent in {}", receiver,
                        call_text(to.call))
          : fmt::format("rank {} received from rank {} something else than rank {} sent in {}",
                        receiver, sender, sender, call_text(to.call));
  return finding_of(to, {receiver, sender}, message);
}

std::optional<DigestFinding> altered_copies(const Met& met) {
  for (const auto& [place, to] : met.members) {
    for (size_t i = 0; i < to->received.size(); ++i) {
      const bool one = to->received.size() == 1 && to->call.root >= 0;
      const auto from = met.members.find(one ? to->call.root : static_cast<int64_t>(i));
      if (from == met.members.end()) continue;
      if (auto found = altered_copy(*to, *from->second, to->received[i])) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<DigestFinding> digest_findings(const std::vector<std::vector<CallDigest>>& calls) {
  std::map<CallKey, Met> all;
  for (const auto& of_rank : calls) {
    CallKeys keys;
    for (size_t i = 0; i < of_rank.size(); ++i) {
      const auto [place, is_new] = all.try_emplace(keys.next(of_rank[i].call));
      Met& met = place->second;
      const std::tuple when{of_rank[i].step, i};
      met.when = is_new ? when : std::min(met.when, when);
      met.members[of_rank[i].call.group_rank] = &of_rank[i];
    }
  }
  std::vector<std::pair<std::tuple<int64_t, size_t>, DigestFinding>> found;
  for (const auto& [key, met] : all) {
    auto finding = met.members.begin()->second->call.op == Op::kAllReduce ? unequal_results(met)
                                                                          : altered_copies(met);
    if (!finding) continue;
    finding->key = key;
    found.emplace_back(met.when, std::move(*finding));
  }
  std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<DigestFinding> findings;
  for (auto& [when, finding] : found) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace shardproof::sim::judge
