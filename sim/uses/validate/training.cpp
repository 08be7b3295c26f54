#include "sim/uses/validate/training.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "observe/probe.h"
#include "sim/uses/validate/groups.h"
#include "tensor/dtype_name.h"

namespace shardproof::sim::validate {
namespace {

using Numbers = std::set<int64_t>;

// The digests of one rank in most of the runs, those that match first.
const TensorDigests& usual_digests(const std::vector<RotatedRun>& runs, size_t rank) {
  const bool any = std::ranges::any_of(runs, [](const auto& run) { return run.matches; });
  size_t best = 0, best_count = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (any && !runs[i].matches) continue;
    size_t count = 0;
    for (const RotatedRun& other : runs) {
      if (any && !other.matches) continue;
      count += other.digests[rank] == runs[i].digests[rank] ? 1 : 0;
    }
    if (count > best_count) {
      best = i;
      best_count = count;
    }
  }
  return runs[best].digests[rank];
}

// Where two lists differ first; nothing where they are equal.
std::optional<size_t> first_difference(const TensorDigests& a, const TensorDigests& b) {
  const size_t both = std::min(a.size(), b.size());
  for (size_t i = 0; i < both; ++i) {
    if (a[i] != b[i]) return i;
  }
  return a.size() == b.size() ? std::nullopt : std::optional(both);
}

Numbers intersection(const Numbers& a, const Numbers& b) {
  Numbers both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  return both;
}

// One run that is wrong: by its digests, or by the judge.
struct WrongRun {
  size_t index = 0;
  std::vector<int64_t> ranks;  // that are wrong first
  std::string what;
};

std::vector<WrongRun> wrong_runs(const std::vector<RotatedRun>& runs) {
  const auto deviations = deviations_of(runs);
  std::vector<WrongRun> wrong;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RotatedRun& run = runs[i];
    if (!deviations[i].empty()) {
      const Deviation& first = deviations[i].front();
      // The judge may know better who was wrong first, when no run matched.
      const bool ask_judge = !run.matches && !run.wrong_ranks.empty();
      wrong.push_back({i, ask_judge ? run.wrong_ranks : first.ranks,
                       fmt::format("the digest of {} on rank {} is another one", first.tensor,
                                   first.ranks.front())});
    } else if (!run.matches) {
      wrong.push_back({i, run.wrong_ranks, run.verdict});
    }
    if (!wrong.empty() && wrong.back().index == i && !run.matches) wrong.back().what = run.verdict;
  }
  return wrong;
}

}  // namespace

std::vector<std::vector<Deviation>> deviations_of(const std::vector<RotatedRun>& runs) {
  std::vector<std::vector<Deviation>> all(runs.size());
  if (runs.empty()) return all;
  const size_t ranks = runs.front().digests.size();
  for (size_t i = 0; i < runs.size(); ++i) {
    std::map<size_t, Deviation> by_place;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const TensorDigests& usual = usual_digests(runs, rank);
      const TensorDigests& own = runs[i].digests[rank];
      const auto place = first_difference(own, usual);
      if (!place) continue;
      Deviation& deviation = by_place[*place];
      const TensorDigests& longer = *place < own.size() ? own : usual;
      deviation.tensor = longer[*place].first;
      deviation.ranks.push_back(static_cast<int64_t>(rank));
    }
    for (auto& [place, deviation] : by_place) all[i].push_back(std::move(deviation));
  }
  return all;
}

std::vector<ValidationFinding> judge_rotations(const std::string& case_name,
                                               const std::vector<RotatedRun>& runs,
                                               const Hosts& hosts, int64_t round) {
  const std::vector<WrongRun> wrong = wrong_runs(runs);
  if (wrong.empty()) return {};
  const auto world_size = static_cast<int64_t>(hosts.of_rank.size());
  std::optional<Numbers> guilty_hosts, guilty_processes, guilty_ranks;
  for (const WrongRun& one : wrong) {
    Numbers of_hosts, processes, ranks;
    for (const int64_t rank : one.ranks) {
      const int64_t process = process_of(rank, runs[one.index].shift, world_size);
      of_hosts.insert(hosts.of(process));
      processes.insert(process);
      ranks.insert(rank);
    }
    guilty_hosts = guilty_hosts ? intersection(*guilty_hosts, of_hosts) : of_hosts;
    guilty_processes = guilty_processes ? intersection(*guilty_processes, processes) : processes;
    guilty_ranks = guilty_ranks ? intersection(*guilty_ranks, ranks) : ranks;
  }
  const bool all_equal = std::ranges::all_of(
      runs, [&](const RotatedRun& run) { return run.digests == runs.front().digests; });
  const bool moved =
      std::ranges::any_of(runs, [&](const RotatedRun& run) { return run.shift != runs[0].shift; });
  const WrongRun& first = wrong.front();
  const bool values =
      std::ranges::any_of(wrong, [&](const WrongRun& one) { return !runs[one.index].matches; });
  ValidationFinding finding{.stage = Stage::kTraining,
                            .kind = values ? FindingKind::kValues : FindingKind::kDigest,
                            .round = round};
  const std::string head =
      fmt::format("{} is wrong in {} of {} runs", case_name, wrong.size(), runs.size());
  if (wrong.size() == runs.size() && all_equal && moved) {
    finding.ranks.assign(guilty_ranks->begin(), guilty_ranks->end());
    finding.message = fmt::format(
        "{}, with the same digests wherever the ranks run: the code (ranks {}), not a host: {}",
        head, fmt::join(finding.ranks, ", "), first.what);
    return {finding};
  }
  for (const int64_t host : *guilty_hosts) finding.hosts.push_back(hosts.name(host));
  finding.ranks.assign(guilty_processes->begin(), guilty_processes->end());
  if (finding.hosts.size() == 1) {
    finding.message = fmt::format("{}, each time first on {}: {}", head,
                                  Hosts::call(finding.hosts[0]), first.what);
  } else if (finding.hosts.empty()) {
    finding.message = fmt::format("{}, on no host every time: {}", head, first.what);
  } else {
    finding.message = fmt::format(
        "{}, each time first on one of {}; groups and pairs tell them "
        "apart: {}",
        head, fmt::join(finding.hosts, ", "), first.what);
  }
  return {finding};
}

ValidationFinding narrowed(ValidationFinding finding,
                           const std::vector<ValidationFinding>& others) {
  if (finding.hosts.size() < 2) return finding;
  std::set<std::string> named;
  for (const ValidationFinding& other : others) {
    if (other.kind != FindingKind::kValues || other.hosts.size() != 1) continue;
    const auto& all = finding.hosts;
    if (std::ranges::find(all, other.hosts[0]) != all.end()) named.insert(other.hosts[0]);
  }
  if (named.size() != 1) return finding;
  finding.hosts = {*named.begin()};
  finding.ranks.clear();
  finding.message += fmt::format("; of these hosts the other stages found {}", *named.begin());
  return finding;
}

// The 128-bit digest of a tensor.

std::pair<std::string, std::string> digest_of_tensor(const Observation& observation) {
  const at::NoGradGuard no_grad;
  const at::Tensor here = observation.tensor.to(at::kCPU).contiguous();
  const std::string head =
      fmt::format("{} [{}]", dtype_name(here.scalar_type()), fmt::join(here.sizes(), ","));
  crypto_generichash_state state;
  std::array<unsigned char, 16> digest = {};
  crypto_generichash_init(&state, nullptr, 0, digest.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(head.data()),
                            head.size());
  crypto_generichash_update(&state, static_cast<const unsigned char*>(here.data_ptr()),
                            here.nbytes());
  crypto_generichash_final(&state, digest.data(), digest.size());
  return {fmt::format("step {}.{} {} {}", observation.step, observation.microbatch,
                      phase_name(observation.phase), observation.name),
          fmt::format("{:02x}", fmt::join(digest, ""))};
}

}  // namespace shardproof::sim::validate
