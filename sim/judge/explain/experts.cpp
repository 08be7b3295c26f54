// Experts that have the values of others, and side losses that count too often in the gradient of a
// router.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

constexpr size_t kListed = 4;

// Which expert's values each wrong expert has, if every wrong row says it and none contradicts.
std::map<int64_t, int64_t> sources_of(const Rows& wrong) {
  std::map<int64_t, int64_t> sources;
  for (const ResultRow* row : wrong) {
    const auto* found = evidence_of<OtherExperts>(*row);
    if (found == nullptr) return {};
    for (size_t i = 0; i < found->experts.size(); ++i) {
      const auto [at, is_new] = sources.emplace(found->experts[i], found->sources[i]);
      if (!is_new && at->second != found->sources[i]) return {};
    }
  }
  return sources;
}

std::string likely_order(const std::map<int64_t, int64_t>& sources, int64_t experts,
                         const Mesh& mesh) {
  const int64_t here = experts / mesh.size("ep");
  if (mesh.size("ep") == 1 || here == 0) return "experts stand in another order";
  const int64_t block = sources.begin()->second / here;
  const auto all = [&](const auto& holds) {
    return std::all_of(sources.begin(), sources.end(),
                       [&](const auto& one) { return holds(one.first, one.second); });
  };
  const bool same_number =
      all([&](int64_t own, int64_t other) { return own % here == other % here; });
  if (same_number && all([&](int64_t, int64_t other) { return other / here == block; })) {
    return fmt::format(
        "the experts of rank {} of ep stand in the place of others: a number within a rank was "
        "taken for one within the layer, or a rank's part for its neighbor's",
        block);
  }
  if (same_number) return "the experts of the ranks of ep were put together in another order";
  if (all([&](int64_t own, int64_t other) { return own / here == other / here; })) {
    return "the experts of a rank of ep stand in another order";
  }
  return "experts stand in another order, also across the ranks of ep";
}

// "the balancing loss counts 2.00 times; 2 is the size of dp"; "" where it counts once.
std::string times_text(const char* loss, double times, const Symptoms& symptoms,
                       std::vector<std::string>& causes) {
  if (std::isnan(times) || std::fabs(times - 1) <= 1e-6) return "";
  if (std::fabs(times) <= 1e-6) {
    causes.push_back(fmt::format("the {} is not added, or its gradient is cut off", loss));
    return fmt::format("it lacks the part of the {}", loss);
  }
  const Explanation words = words_for_factor(times, symptoms);
  if (std::fabs(times - 2) <= 1e-6) causes.push_back(fmt::format("the {} is added twice", loss));
  const bool is_new = std::find(causes.begin(), causes.end(), words.likely) == causes.end();
  if (!words.likely.empty() && is_new) causes.push_back(words.likely);
  return fmt::format("it has the part of the {} times {}", loss, words.pattern);
}

// Where the part of one loss alone is wrong, by a number that is another one on other ranks or in
// other microbatches.
std::optional<Proposal> propose_own_mean(const Difference& difference,
                                         double SideLossParts::*part) {
  const bool is_z = part == &SideLossParts::z;
  double SideLossParts::*const other = is_z ? &SideLossParts::balance : &SideLossParts::z;
  double least = std::numeric_limits<double>::infinity(), greatest = 0;
  for (const ResultRow* row : difference.wrong) {
    const auto* found = evidence_of<SideLossParts>(*row);
    if (found == nullptr || !(found->*part > 1e-6)) return std::nullopt;
    if (!std::isnan(found->*other) && std::fabs(found->*other - 1) > 1e-6) return std::nullopt;
    least = std::min(least, found->*part);
    greatest = std::max(greatest, found->*part);
  }
  if (!(greatest - least > 1e-6)) return std::nullopt;
  const char* loss = is_z ? "z loss" : "balancing loss";
  return Proposal{
      .pattern = fmt::format("it has the part of the {}, by rank or microbatch, {:.6g} to {:.6g} "
                             "times",
                             loss, least, greatest),
      .likely = fmt::format("the mean of the {} is taken over each rank's or microbatch's own "
                            "tokens, or divided by another count of its own, where one count of "
                            "all that share it is due",
                            loss),
      .description = kFreeNumber * static_cast<double>(difference.wrong.size()),
      .ranks = difference.ranks};
}

}  // namespace

std::optional<Proposal> propose_other_experts(const Difference& difference) {
  const std::map<int64_t, int64_t> sources = sources_of(difference.wrong);
  if (sources.empty() || difference.wrong.front()->global_shape.empty()) return std::nullopt;
  std::vector<std::string> listed;
  for (const auto& [expert, source] : sources) {
    if (listed.size() == kListed) break;
    listed.push_back(fmt::format("expert {} has the golden's values of expert {}", expert, source));
  }
  const int64_t experts = difference.wrong.front()->global_shape.front();
  return Proposal{.pattern = fmt::format("{}{}", fmt::join(listed, ", "),
                                         sources.size() > kListed ? " .." : ""),
                  .likely = likely_order(sources, experts, difference.symptoms.mesh),
                  .description = std::log(static_cast<double>(experts)),
                  .ranks = difference.ranks};
}

std::optional<Proposal> propose_side_losses(const Difference& difference) {
  constexpr double kUnseen = std::numeric_limits<double>::quiet_NaN();
  if (const auto own = propose_own_mean(difference, &SideLossParts::z)) return own;
  if (const auto own = propose_own_mean(difference, &SideLossParts::balance)) return own;
  SideLossParts parts{kUnseen, kUnseen};
  for (const ResultRow* row : difference.wrong) {
    const auto* found = evidence_of<SideLossParts>(*row);
    if (found == nullptr) return std::nullopt;
    for (double SideLossParts::*part : {&SideLossParts::balance, &SideLossParts::z}) {
      if (std::isnan(found->*part)) continue;
      if (std::fabs(found->*part - parts.*part) > 1e-6) return std::nullopt;
      parts.*part = found->*part;
    }
  }
  std::vector<std::string> causes;
  const std::string balance =
      times_text("balancing loss", parts.balance, difference.symptoms, causes);
  const std::string z = times_text("z loss", parts.z, difference.symptoms, causes);
  if (balance.empty() && z.empty()) return std::nullopt;
  if (causes.empty()) {
    const char* count = "divided by another number of microbatches, sequences or tokens";
    if (!balance.empty() && !z.empty()) {  // each has a coefficient of its own
      causes.push_back(fmt::format("the side losses are {}", count));
    } else {
      causes.push_back(fmt::format("the {} is {}, or its coefficient is another",
                                   z.empty() ? "balancing loss" : "z loss", count));
    }
  }
  return Proposal{.pattern = balance + (balance.empty() || z.empty() ? "" : ", and ") + z,
                  .likely = fmt::format("{}", fmt::join(causes, "; or ")),
                  .description = kFreeNumber,
                  .ranks = difference.ranks};
}

}  // namespace shardproof::sim::judge
