#include "sim/judge/verdict/endings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace shardproof::sim {
namespace {

// Causes come before their consequences.
constexpr std::array<const char*, 9> kCauses = {"died",         "internal",  "disagreement",
                                                "threw",        "in_flight", "deadlock",
                                                "never_waited", "hung",      "aborted"};

bool is_refusal(const RankEnding& ending) {
  return ending.kind == "refused" || ending.kind == "bad_input";
}

std::string rank_list(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < 8; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > 8) text += fmt::format(" and {} more", ranks.size() - 8);
  return text;
}

std::string call_clause(const RankEnding& ending) {
  return ending.last_call.empty() ? "" : " (last collective: " + ending.last_call + ")";
}

// Each different message once, with the ranks that gave it.
std::string messages_of(const std::vector<RankEnding>& endings, const std::string& kind) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<int64_t>> ranks;
  for (const RankEnding& ending : endings) {
    if (ending.kind != kind) continue;
    const std::string text = (ending.message.empty() ? kind : ending.message) + call_clause(ending);
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

// Judges a case in which some ranks refused: no other rank may have gone on.
EndingVerdict judge_refusal(const std::vector<RankEnding>& endings) {
  const auto refusal = std::find_if(endings.begin(), endings.end(), is_refusal);
  for (const RankEnding& ending : endings) {
    const bool went_on =
        !is_refusal(ending) && (ending.kind == "finished" || !ending.last_call.empty());
    if (!went_on) continue;
    return {"failed", "disagreement",
            fmt::format("rank {} refused while rank {} went on{}\nrank {}: {}", refusal->rank,
                        ending.rank, call_clause(ending), refusal->rank, refusal->message)};
  }
  const bool bad_input = std::any_of(endings.begin(), endings.end(), [](const RankEnding& ending) {
    return ending.kind == "bad_input";
  });
  const std::string kind = bad_input ? "bad_input" : "refused";
  const auto first = std::find_if(endings.begin(), endings.end(),
                                  [&](const RankEnding& ending) { return ending.kind == kind; });
  return {kind, kind, first->message};
}

}  // namespace

EndingVerdict judge_endings(const std::vector<RankEnding>& endings) {
  if (endings.empty()) return {"internal", "internal", "the case has no rank endings"};
  const auto has = [&](const std::string& kind) {
    return std::any_of(endings.begin(), endings.end(),
                       [&](const RankEnding& ending) { return ending.kind == kind; });
  };
  if (std::all_of(endings.begin(), endings.end(),
                  [](const RankEnding& ending) { return ending.kind == "finished"; })) {
    return {};
  }
  // One rank's refusal ended the world: the others were aborted, or waited for a rank that left.
  const bool only_consequences =
      std::all_of(endings.begin(), endings.end(), [](const RankEnding& ending) {
        return is_refusal(ending) || ending.kind == "finished" || ending.kind == "aborted" ||
               ending.kind == "deadlock" || ending.kind == "hung";
      });
  if (only_consequences && std::any_of(endings.begin(), endings.end(), is_refusal)) {
    return judge_refusal(endings);
  }
  for (const std::string kind : kCauses) {
    if (!has(kind)) continue;
    return {kind == "internal" ? "internal" : "failed", kind, messages_of(endings, kind)};
  }
  const auto unknown = std::find_if(endings.begin(), endings.end(), [](const RankEnding& ending) {
    return ending.kind != "finished" && !is_refusal(ending);
  });
  const std::string kind = unknown == endings.end() ? "" : unknown->kind;
  return {"internal", "internal", "a rank ended in an unknown way: '" + kind + "'"};
}

EndingVerdict judge_findings(const std::vector<RankReport>& reports) {
  std::string message;
  for (const RankReport& report : reports) {
    for (const std::string& finding : report.findings) {
      message += (message.empty() ? "" : "\n") + finding;
    }
  }
  return message.empty() ? EndingVerdict{} : EndingVerdict{"failed", "never_waited", message};
}

}  // namespace shardproof::sim
