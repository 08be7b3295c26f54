// What a case is drawn for: a pair that has not run, three values of a registered workload, or an
// edge of the code.
#include <fmt/format.h>

#include <algorithm>

#include "base/count_of.h"
#include "base/error.h"
#include "sim/uses/explore/draw.h"

namespace shardproof::sim::explore {

namespace {

// A case is the one with the most that has not run of so many draws, which take far less time than
// the case.
constexpr int kDrawsToChoose = 8;
constexpr int kMostRefused = 1000;  // pairs
// Drawn cases, where none at all was taken: some seconds.
constexpr int64_t kMostHopeless = 15000;

}  // namespace

bool Drawer::is_of_one_option(const KindPair& pair) const {
  return catalog_.kinds()[pair.first].option == catalog_.kinds()[pair.second].option;
}

// Every three of the values of a case of a registered workload: of its own options, the mesh and
// the precision.
std::vector<uint64_t> Drawer::triples_in(const CaseSettings& settings) const {
  std::vector<uint64_t> kinds, triples;
  for (const size_t kind : catalog_.kinds_in(settings)) {
    const DrawnOption& option = catalog_.options()[catalog_.kinds()[kind].option];
    const bool of_mesh = option.path.starts_with("parallel.") && option.path.ends_with("_size");
    if (!option.workload.empty() || of_mesh || option.path == "precision") kinds.push_back(kind);
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (size_t j = i + 1; j < kinds.size(); ++j) {
      for (size_t k = j + 1; k < kinds.size(); ++k) {
        triples.push_back(kinds[i] << 40 | kinds[j] << 20 | kinds[k]);
      }
    }
  }
  return triples;
}

std::optional<CaseSettings> Drawer::draw_registered(std::mt19937_64& random) {
  const auto& workloads = catalog_.own_kinds();
  if (workloads.empty()) return std::nullopt;
  const auto place = static_cast<std::ptrdiff_t>(random() % workloads.size());
  const std::vector<size_t>& own = std::next(workloads.begin(), place)->second;
  std::optional<CaseSettings> best;
  int64_t most = -1;
  for (int i = 0; i < kDrawsToChoose; ++i) {
    const KindPair pair = std::minmax(any(own, random), any(own, random));
    if (pair.first != pair.second && is_of_one_option(pair)) continue;
    auto settings = draw(pair, random, kTries);
    if (!settings) continue;
    const std::vector<uint64_t> triples = triples_in(*settings);
    const int64_t added = std::ranges::count_if(
        triples, [&](uint64_t triple) { return triples_.count(triple) == 0; });
    if (added > most) best = std::move(settings);
    most = std::max(most, added);
  }
  if (best) {
    for (const uint64_t triple : triples_in(*best)) triples_.insert(triple);
  }
  return best;
}

std::optional<CaseSettings> Drawer::draw_at_edge(std::mt19937_64& random) {
  if (catalog_.edge_kinds().empty()) return std::nullopt;
  const auto& [kind, code] = any(catalog_.edge_kinds(), random);
  const std::vector<size_t> beside = catalog_.kinds_of_code(code);
  if (beside.empty()) return std::nullopt;
  const KindPair pair = std::minmax(kind, any(beside, random));
  if (is_of_one_option(pair)) return std::nullopt;
  return draw(pair, random, kTries);
}

CaseSettings Drawer::draw_missing(PairCoverage& run, PairCoverage& expected,
                                  std::mt19937_64& random) {
  int refused = 0;
  for (;;) {
    const auto [missing, found] = expected.missing_pair(random);
    const KindPair pair = found ? missing : expected.any_pair(random);
    if (auto settings = draw(pair, random, kTries)) {
      has_drawn_ = true;
      int64_t most = expected.count_new(catalog_.kinds_in(*settings));
      for (int i = 1; i < kDrawsToChoose; ++i) {
        auto other = draw(pair, random, kTries);
        const int64_t added = other ? expected.count_new(catalog_.kinds_in(*other)) : 0;
        if (added > most) settings = std::move(other);
        most = std::max(most, added);
      }
      return *settings;
    }
    const bool is_hopeless = !has_drawn_ && counts_.drawn >= kMostHopeless;
    if (is_hopeless || (!found && ++refused >= kMostRefused)) {
      const auto count = [](const auto& one) { return one.second; };
      const auto most = std::ranges::max_element(counts_.refused_by, {}, count);
      const std::string why =
          most == counts_.refused_by.end()
              ? ""
              : fmt::format(" ({} as in: {})", most->second, counts_.sentences.at(most->first));
      throw_bad_input(fmt::format("no case that the checks take was drawn, of {}{}",
                                  count_of(counts_.drawn, "case"), why),
                      "loosen --set");
    }
    if (!found) continue;
    run.give_up(pair);
    expected.give_up(pair);
  }
}

}  // namespace shardproof::sim::explore
