// What the optimizers of two runs differ in: rates, decays and other settings.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "sim/judge/diff/factor_sums.h"
#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/gradients.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

constexpr double kMultipleOfWeight =
    1e-6;  // relative distance of a change from a multiple of the weight
constexpr int64_t kFewestOfDecay = 4;  // elements that tell
constexpr double kLeastDecay = 1e-9;
constexpr double kLeastSpread = 1e-3;  // of values, relative to the largest

// The rate that the parameter's optimizer had in the step; unset where it is not recorded.
std::optional<double> rate_of(const std::vector<double>& rates, int64_t step) {
  if (step < 1 || step > std::ssize(rates)) return std::nullopt;
  return rates[static_cast<size_t>(step - 1)];
}

std::optional<double> rate_of(const Reference& reference, const std::string& parameter,
                              int64_t step) {
  if (const ParameterGroup* group = group_of(reference.groups, parameter)) {
    return rate_of(group->lr, step);
  }
  const GoldenTensor* common = reference.record.find(Phase::kStep, step, "lr");
  if (!common || !common->value.holds<double>()) return std::nullopt;
  return *common->value.data<double>();
}

constexpr double kSameRate = 1e-6;  // which schedulers may round otherwise, or to float32

std::string other_rate(const RecordedRun& run, const Reference& reference,
                       const std::string& parameter, int64_t step) {
  if (run.from_step > 0) return "";  // whose first step is a later one of the golden
  const ParameterGroup* here = group_of(run.groups, parameter);
  if (!here && !run.groups.empty()) return "";  // run.json has the groups of rank 0 alone
  const auto own = rate_of(here ? here->lr : run.lr, step);
  const auto due = rate_of(reference, parameter, step);
  if (!own || !due || !(std::fabs(*own - *due) > kSameRate * std::fabs(*due))) return "";
  return fmt::format("lr of step {} is {:.6g}, the golden's {:.6g}", step, *own, *due);
}

// Of numbers, which one run may keep in float32.
bool is_same_setting(const std::string& one, const std::string& other) {
  char *end = nullptr, *other_end = nullptr;
  const double number = std::strtod(one.c_str(), &end);
  const double due = std::strtod(other.c_str(), &other_end);
  const bool are_numbers =
      end != one.c_str() && *end == 0 && other_end != other.c_str() && *other_end == 0;
  return one == other || (are_numbers && std::fabs(number - due) <= kSameRate * std::fabs(due));
}

// RecordedRun or Reference
template <class Recorded>
std::map<std::string, std::string> settings_of(const Recorded& one, const std::string& parameter) {
  const ParameterGroup* group = group_of(one.groups, parameter);
  if (!group && !one.groups.empty()) return {};
  return group ? group->settings : one.settings;
}

}  // namespace

// p' = (1 - lr decay) p - ..
std::string other_decay(const RecordedRun& run, const Reference& reference,
                        const judge::Divergence& found) {
  if (found.worst.kind != ObservationKind::kParameter || run.from_step > 0) return "";
  const GoldenTensor* before =
      reference.record.find(Phase::kStep, found.step - 1, found.worst.name);
  const std::string parameter = parameter_of(found.worst.kind, found.worst.name);
  const auto rate = rate_of(reference, parameter, found.step);
  const auto settings = settings_of(reference, parameter);
  const auto decay = settings.find("weight_decay");
  const auto nesterov = settings.find("nesterov");
  if (nesterov != settings.end() && nesterov->second == "true") return "";
  if (!before || !before->value.holds<double>() || !rate || *rate <= 0 || decay == settings.end() ||
      before->value.sizes() != found.worst.global_shape) {
    return "";
  }
  const auto [least, most] = std::ranges::minmax(values_as<double>(before->value));
  if (!(most - least > kLeastSpread * before->scale)) return "";  // as any factor of an update
  judge::FactorSums sums;
  bool has_moved = false;
  for (const Gradient& one :
       pieces_beside(run, reference, found.step, [&](const RecordedPiece& piece) {
         return piece.name == found.worst.name && std::ranges::count(found.ranks, piece.rank) > 0;
       })) {
    if (one.is_right()) continue;
    size_t next = 0;
    plan_of(*one.piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      for (int64_t i = global; i < global + length; ++i, ++next) {
        const double then = before->value.data<double>()[i];
        has_moved = has_moved || one.actual[next] != then;
        sums.add(one.actual[next] - one.expected[next], then);
      }
    });
  }
  const double due = std::strtod(decay->second.c_str(), nullptr);
  const double here = due - sums.factor() / *rate;
  if (!has_moved || sums.count < kFewestOfDecay || !sums.fits(kMultipleOfWeight) ||
      here < -kLeastDecay)
    return "";
  return fmt::format(
      "it is off by {:.3g} x its value before the step: its weight decay is {:.4g} there, and the "
      "reference's is {:.4g}",
      sums.factor(), here <= kLeastDecay ? 0 : here, due);
}

std::string other_settings(const RecordedRun& run, const Reference& reference,
                           const std::string& parameter, int64_t step, bool numbers_alone) {
  std::map<std::string, std::string> here = settings_of(run, parameter),
                                     there = settings_of(reference, parameter);
  if (here.contains("rule") && there.contains("rule")) here.erase("type");  // the rule counts
  // A subclass may compute what its base class does.
  constexpr const char* kUnknown = "\"other\"";
  const auto is_unknown = [](const std::map<std::string, std::string>& settings) {
    const auto rule = settings.find("rule");
    return rule != settings.end() && rule->second == kUnknown;
  };
  const bool are_known = !here.empty() && !there.empty() && !is_unknown(here) && !is_unknown(there);
  if (numbers_alone || is_unknown(here) || is_unknown(there)) here.erase("rule");
  if (numbers_alone) here.erase("type");
  for (const char* key : {"amsgrad", "nesterov", "maximize"}) {  // written where they are on
    if (!are_known || (!here.contains(key) && !there.contains(key))) continue;
    here.emplace(key, "false");
    there.emplace(key, "false");
  }
  std::vector<std::string> texts;
  for (const auto& [key, value] : here) {
    const auto other = there.find(key);
    if (other == there.end() || is_same_setting(other->second, value)) continue;
    texts.push_back(fmt::format("{} is {}, the golden's {}", key, value, other->second));
  }
  if (const std::string rate = other_rate(run, reference, parameter, step); !rate.empty()) {
    texts.push_back(rate);
  }
  if (texts.empty()) return "";
  return fmt::format("the optimizers have other settings (run.json): {}", fmt::join(texts, "; "));
}

std::string other_clip(const RecordedRun& run, const Reference& reference) {
  const double here = run.optimizer.max_norm, due = reference.max_norm;  // 0: not recorded
  if (here == 0 || due == 0 || std::fabs(here - due) <= kSameRate * due) return "";
  return fmt::format("max_norm of the last clip is {}, the golden's {} (run.json)", here, due);
}

std::string settings_that_nothing_judged(const RecordedRun& run, const Reference& reference,
                                         const std::vector<judge::RankReport>& reports) {
  for (const judge::RankReport& report : reports) {
    for (const judge::ResultRow& row : report.rows) {
      const bool is_open = row.outcome == judge::Outcome::kUnresolved;
      if (row.kind != ObservationKind::kParameter || row.step == 0 || !is_open) continue;
      const std::string text =
          other_settings(run, reference, parameter_of(row.kind, row.name), row.step, true);
      if (text.empty()) continue;
      return fmt::format("{}, and {} of step {} could not be judged", text, row.name, row.step);
    }
  }
  return "";
}

}  // namespace shardproof::sim::recorded
