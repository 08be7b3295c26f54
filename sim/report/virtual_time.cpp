// Sums over the entries of RankClock::timeline(), and the critical path, found from its end.
#include "sim/report/virtual_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "sim/case/stretch.h"
#include "sim/report/escape.h"

namespace shardproof::sim::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kListedShares = 4;
constexpr double kRounding = 1e-9;  // relative; two times within it are equal

// A call that blocked a rank, or that was complete when the rank waited for it.
struct Call {
  std::string name, group;
  double begin_us = 0, end_us = 0, ready_us = 0, blocked_from_us = 0;
  int64_t last_rank = -1;
};

struct Interval {
  double from_us = 0, to_us = 0;
};

struct RankEntries {
  RankTime time;
  std::vector<Call> calls;
  std::vector<Interval> blocked;                     // waiting or exposed
  std::map<int64_t, std::vector<Interval>> actions;  // by step
};

void add_entry(RankEntries& rank, const Stretch& entry) {
  const StretchKind kind = entry.kind;
  const double start = entry.start_us, duration = entry.duration_us;
  RankTime& time = rank.time;
  if (kind == StretchKind::kCompute) time.compute_us += duration;
  if (kind == StretchKind::kWaiting) time.waiting_us += duration;
  if (kind == StretchKind::kExposed) time.exposed_us += duration;
  if (kind == StretchKind::kWaiting || kind == StretchKind::kExposed) {
    rank.blocked.push_back({start, start + duration});
  }
  if (kind == StretchKind::kAction) {
    rank.actions[entry.step].push_back({start, start + duration});
  }
  if (kind != StretchKind::kCommunication) {
    time.total_us = std::max(time.total_us, start + duration);
    return;
  }
  time.communication_us += duration;
  rank.calls.push_back({.name = valid_utf8(entry.name),
                        .group = entry.group,
                        .begin_us = start,
                        .end_us = start + duration,
                        .ready_us = entry.ready_us,
                        .blocked_from_us = entry.blocked_from_us,
                        .last_rank = entry.last_rank});
}

std::map<int64_t, RankEntries> entries_of(const judge::CaseResult& result) {
  std::map<int64_t, RankEntries> ranks;
  for (const judge::RankReport& report : result.reports) {
    for (const Stretch& entry : report.timeline) {
      if (!entry.in_virtual_time) continue;
      RankEntries& rank = ranks[report.rank];
      rank.time.rank = report.rank;
      add_entry(rank, entry);
    }
  }
  return ranks;
}

double overlap_us(const Interval& a, const Interval& b) {
  return std::max(0.0, std::min(a.to_us, b.to_us) - std::max(a.from_us, b.from_us));
}

// The share of the ranks' time between the first and the last action of a step in which they do not
// compute an action; none without actions.
std::optional<double> bubble(const std::map<int64_t, RankEntries>& ranks) {
  std::map<int64_t, Interval> steps;
  for (const auto& [rank, entries] : ranks) {
    for (const auto& [step, actions] : entries.actions) {
      Interval& whole = steps.try_emplace(step, actions.front()).first->second;
      whole.from_us = std::min(whole.from_us, actions.front().from_us);
      whole.to_us = std::max(whole.to_us, actions.back().to_us);
    }
  }
  double time = 0, work = 0;
  for (const auto& [rank, entries] : ranks) {
    for (const auto& [step, actions] : entries.actions) {
      time += steps.at(step).to_us - steps.at(step).from_us;
      for (const Interval& action : actions) {
        work += action.to_us - action.from_us;
        for (const Interval& blocked : entries.blocked) work -= overlap_us(action, blocked);
      }
    }
  }
  return time > 0 ? std::optional(1 - work / time) : std::nullopt;
}

std::optional<double> formula_of(const judge::CaseResult& result) {
  for (const judge::RankReport& report : result.reports) {
    const auto share = report.metrics.find("bubble_formula");
    if (share != report.metrics.end() && share->is_number()) return share->get<double>();
  }
  return std::nullopt;
}

// Walks back from the end of the rank that ends last. Before the release of a rank from a call lies
// the call's transfer. Before that lies the group's previous transfer or the last member.
class PathWalk {
 public:
  explicit PathWalk(const std::map<int64_t, RankEntries>& ranks) : ranks_(ranks) {
    for (const auto& [rank, entries] : ranks) calls_ += entries.calls.size();
  }

  std::vector<PathStep> from(int64_t rank, double end_us) {
    // Each turn ends at an earlier event; the bound protects against invalid entries.
    for (size_t turn = 0; turn <= 2 * calls_ + 1 && end_us > 0; ++turn) {
      const Call* call = released_before(rank, end_us);
      step(rank, true, "compute", call != nullptr ? std::min(call->end_us, end_us) : 0, end_us);
      if (call == nullptr) break;
      end_us = std::min(call->end_us, end_us);
      while (call != nullptr) {
        step(rank, false, call->name, call->begin_us, end_us);
        end_us = std::min(end_us, call->begin_us);
        const Call* before =
            call->begin_us > later(call->ready_us) ? queued_behind(rank, *call) : nullptr;
        if (before == nullptr && ranks_.count(call->last_rank) != 0) rank = call->last_rank;
        call = before;
      }
    }
    std::ranges::reverse(path_);
    return std::move(path_);
  }

 private:
  static double later(double time) { return time * (1 + kRounding) + kRounding; }

  // The last call that blocked the rank and ended by then.
  const Call* released_before(int64_t rank, double time) const {
    const Call* found = nullptr;
    for (const Call& call : ranks_.at(rank).calls) {
      if (call.end_us > later(time) || call.end_us <= later(call.blocked_from_us)) continue;
      if (found == nullptr || call.end_us > found->end_us) found = &call;
    }
    return found;
  }
  // The earlier call of the same group whose transfer delayed this one.
  const Call* queued_behind(int64_t rank, const Call& next) const {
    const Call* found = nullptr;
    for (const Call& call : ranks_.at(rank).calls) {
      if (&call == &next || call.group != next.group) continue;
      if (call.end_us > later(next.begin_us)) continue;
      if (call.begin_us >= next.begin_us) continue;
      if (found == nullptr || call.end_us > found->end_us) found = &call;
    }
    return found;
  }
  void step(int64_t rank, bool compute, const std::string& name, double from_us, double to_us) {
    if (to_us <= from_us) return;
    path_.push_back({.rank = rank,
                     .compute = compute,
                     .name = name,
                     .start_us = from_us,
                     .duration_us = to_us - from_us});
  }

  const std::map<int64_t, RankEntries>& ranks_;
  size_t calls_ = 0;
  std::vector<PathStep> path_;
};

// Whether the scenario defines virtual time; otherwise only CPU time counts.
bool declared(const WorldSpec& world) {
  const auto any = [](const LinkSpec& link) { return link.latency_us > 0 || link.gb_per_s > 0; };
  return world.compute == ComputeTime::kFixed || any(world.in_node) || any(world.inter_node) ||
         !world.stragglers.empty();
}

// "all_reduce(sum) tp[2,3]" from "all_reduce(sum) tp[2,3] [4] float64 'label'".
std::string op_and_group(const std::string& name) {
  const size_t group = name.find(']');
  return group == std::string::npos ? name : name.substr(0, group + 1);
}

std::string shares_text(const VirtualTime& time) {
  const std::vector<PathShare> shares = path_shares(time);
  std::string text;
  for (size_t i = 0; i < std::min(kListedShares, shares.size()); ++i) {
    text += fmt::format("{}{} {:.0f}%", i == 0 ? "" : ", ", shares[i].what,
                        100 * shares[i].duration_us / time.total_us);
  }
  return text + (shares.size() > kListedShares ? ", .." : "");
}

std::string bubble_text(const VirtualTime& time) {
  if (!time.bubble) return "";
  std::string text =
      fmt::format("\n             bubble {:.1f}% of a step measured", 100 * *time.bubble);
  if (time.bubble_formula) text += fmt::format(", {:.1f}% by formula", 100 * *time.bubble_formula);
  return text;
}

constexpr size_t kMostSteps = 40;
constexpr size_t kMostShares = 12;

// The places of the kMostSteps longest steps, in their order; of equal ones the first.
std::vector<size_t> listed(const std::vector<PathStep>& path) {
  std::vector<size_t> places(path.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::ranges::stable_sort(places, std::greater<>(), [&](size_t i) { return path[i].duration_us; });
  places.resize(std::min(places.size(), kMostSteps));
  std::ranges::sort(places);
  return places;
}

Json path_json(const std::vector<PathStep>& path) {
  auto out = Json::array();
  for (const size_t place : listed(path)) {
    const PathStep& step = path[place];
    out.push_back({{"rank", step.rank},
                   {"what", step.name},
                   {"start_us", json_number(step.start_us)},
                   {"duration_us", json_number(step.duration_us)}});
  }
  return out;
}

}  // namespace

std::optional<VirtualTime> virtual_time(const judge::CaseResult& result) {
  const std::map<int64_t, RankEntries> ranks = entries_of(result);
  if (ranks.empty()) return std::nullopt;
  VirtualTime time;
  int64_t last = -1;
  for (const auto& [rank, entries] : ranks) {
    time.ranks.push_back(entries.time);
    if (last >= 0 && entries.time.total_us <= time.total_us) continue;
    time.total_us = entries.time.total_us;
    last = rank;
  }
  time.path = PathWalk(ranks).from(last, time.total_us);
  time.bubble = bubble(ranks);
  if (time.bubble) time.bubble_formula = formula_of(result);
  return time;
}

std::vector<PathShare> path_shares(const VirtualTime& time) {
  std::map<std::string, double> by_what;
  for (const PathStep& step : time.path) {
    const std::string what =
        step.compute ? fmt::format("rank {} compute", step.rank) : op_and_group(step.name);
    by_what[what] += step.duration_us;
  }
  std::vector<PathShare> shares;
  for (const auto& [what, duration_us] : by_what) shares.push_back({what, duration_us});
  std::ranges::stable_sort(shares, std::greater<>(), &PathShare::duration_us);
  return shares;
}

std::string virtual_time_line(const judge::CaseResult& result) {
  if (!declared(result.spec.world)) return "";
  const auto time = virtual_time(result);
  if (!time || time->total_us <= 0) return "";
  double compute = 0, waiting = 0, exposed = 0, communication = 0;
  for (const RankTime& rank : time->ranks) {
    compute += rank.compute_us;
    waiting += rank.waiting_us;
    exposed += rank.exposed_us;
    communication += rank.communication_us;
  }
  const double to_mean_ms = 1e-3 / static_cast<double>(time->ranks.size());
  return fmt::format(
             "virtual {:.3f} ms: compute {:.3f}, waiting {:.3f}, exposed communication {:.3f} of "
             "{:.3f} "
             "(mean over ranks)\n             critical path: {}",
             time->total_us * 1e-3, compute * to_mean_ms, waiting * to_mean_ms,
             exposed * to_mean_ms, communication * to_mean_ms, shares_text(*time)) +
         bubble_text(*time);
}

nlohmann::ordered_json virtual_time_json(const judge::CaseResult& result) {
  const auto time = virtual_time(result);
  if (!time) return nullptr;
  auto ranks = Json::array();
  for (const RankTime& rank : time->ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"total_us", json_number(rank.total_us)},
                     {"compute_us", json_number(rank.compute_us)},
                     {"waiting_us", json_number(rank.waiting_us)},
                     {"exposed_us", json_number(rank.exposed_us)},
                     {"communication_us", json_number(rank.communication_us)}});
  }
  const Json path = path_json(time->path);
  auto shares = Json::array();
  for (const PathShare& share : path_shares(*time)) {
    if (shares.size() == kMostShares) break;
    shares.push_back({{"what", share.what}, {"duration_us", json_number(share.duration_us)}});
  }
  const size_t left_out = time->path.size() - path.size();
  Json out = {{"total_us", json_number(time->total_us)},
              {"ranks", ranks},
              {"critical_path", path},
              {"critical_path_left_out", left_out},
              {"critical_path_shares", shares}};
  if (time->bubble) out["bubble"] = json_number(*time->bubble);
  if (time->bubble_formula) out["bubble_formula"] = json_number(*time->bubble_formula);
  return out;
}

}  // namespace shardproof::sim::report
