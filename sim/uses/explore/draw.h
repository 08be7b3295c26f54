// Draws cases that the checks before a run accept.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/uses/explore/catalog.h"
#include "sim/uses/explore/pair_coverage.h"

namespace shardproof::sim::explore {

template <class Item>
const Item& any(const std::vector<Item>& items, std::mt19937_64& random) {
  return items[random() % items.size()];
}

inline bool happens(double share, std::mt19937_64& random) {
  return static_cast<double>(random() % 1000000) < share * 1e6;
}

// Which draws were refused before a run, and by which key; "" where no key is named. `sentences`
// has a key's last.
struct DrawCounts {
  int64_t drawn = 0, refused = 0;
  std::map<std::string, int64_t> refused_by = {};
  std::map<std::string, std::string> sentences = {};
};

class Drawer {
 public:
  // A pair is given up when so many draws with it were refused.
  static constexpr int64_t kTries = 6;

  Drawer(const Catalog& catalog, WorldChoice world) : catalog_(catalog), world_(std::move(world)) {}

  // A case with both kinds of values in effect, and others drawn around them. Draws again when the
  // checks refuse it, without the setting at fault; nothing after `tries` draws.
  std::optional<CaseSettings> draw(const KindPair& pair, std::mt19937_64& random, int64_t tries);
  // A case with a pair that `expected` lacks (what has run, and what is about to) and as many
  // others as possible, of a registered workload only where the pair needs one or no model is
  // drawn. Both give up pairs for which there is none.
  CaseSettings draw_missing(PairCoverage& run, PairCoverage& expected, std::mt19937_64& random);

  // A case of a registered workload, with as many as possible of the values of three options that
  // it has not drawn together yet. Nothing where no such workload is drawn.
  std::optional<CaseSettings> draw_registered(std::mt19937_64& random);

  // A case with a size at which a piece of the code takes another way, and a value of what the same
  // code reads. Nothing where the two do not go together.
  std::optional<CaseSettings> draw_at_edge(std::mt19937_64& random);

  const DrawCounts& counts() const { return counts_; }

 private:
  struct Drawing;
  bool require(Drawing& drawing, const std::string& path, const nlohmann::json& value,
               std::mt19937_64& random) const;
  bool require_effect(Drawing& drawing, const std::string& path, std::mt19937_64& random) const;
  bool require_kind(Drawing& drawing, size_t kind, std::mt19937_64& random) const;
  void choose_workload(Drawing& drawing, std::mt19937_64& random) const;
  nlohmann::json drawn_value(const DrawnOption& option, const CaseSettings& settings,
                             std::mt19937_64& random) const;
  void fill(Drawing& drawing, double share, std::mt19937_64& random) const;
  void choose_stages(Drawing& drawing, std::mt19937_64& random) const;
  void fill_stages(Drawing& drawing, double share, std::mt19937_64& random) const;
  bool settle(Drawing& drawing, std::mt19937_64& random);
  std::vector<uint64_t> triples_in(const CaseSettings& settings) const;
  bool is_of_one_option(const KindPair& pair) const;
  bool is_hopeless(const std::string& path, const nlohmann::json& value) const;

  const Catalog& catalog_;
  WorldChoice world_;
  DrawCounts counts_;
  bool has_drawn_ = false;  // draw_missing() a case
  // By setting, "run.steps: 3": how often the checks refused it, and how often they took it.
  std::map<std::string, std::pair<int64_t, int64_t>> outcomes_;
  std::unordered_set<uint64_t> triples_;  // of registered workloads, that were drawn
};

// Whether a drawn case is small enough that thousands run in an hour.
bool is_small(const CaseSpec& spec);

}  // namespace shardproof::sim::explore
