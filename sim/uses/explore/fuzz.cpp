#include "sim/uses/explore/fuzz.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/count_of.h"
#include "base/elapsed.h"
#include "base/error.h"
#include "base/seed.h"
#include "base/text_file.h"
#include "base/utf8.h"
#include "sim/case/scenario/scenario.h"
#include "sim/lint/case_reader.h"
#include "sim/uses/explore/shrink.h"

namespace shardproof::sim::explore {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Cases; after each round, what has run is known. The first is short, so that what every second
// case shows is reported within seconds, and each has twice as many as the one before.
constexpr int64_t kCasesOfFirst = 50, kCasesOfRound = 400;
// One of kPairs cases is around a pair of values that has not run, and one of kAtEdges of these is
// at an edge of the code instead. The others are of registered workloads and take little time each.
constexpr int64_t kPairs = 4, kAtEdges = 4;
constexpr int64_t kSampledPairs = 2000;  // of which the valid ones are counted
constexpr int64_t kSampleTries = 20;     // draws before a pair counts as invalid
constexpr size_t kShownUnexpected = 20;

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Fuzz::Fuzz(const FuzzSettings& settings, const Catalog& catalog, WorldChoice world,
           RunRound run_round, std::function<bool()> interrupted)
    : settings_(settings),
      catalog_(catalog),
      world_(std::move(world)),
      run_round_(std::move(run_round)),
      interrupted_(std::move(interrupted)),
      coverage_(catalog_),
      drawer_(catalog_, world_),
      random_(stream_seed(settings_.seed, "fuzz")) {}

void Fuzz::read_corpus(const std::string& folder) {
  has_corpus_ = true;
  for (const std::string& file : lint::find_scenario_files({folder})) {
    for (const CaseSettings& settings : parse_scenario(file, world_).settings) {
      coverage_.add(catalog_.kinds_in(settings));
    }
  }
}

void Fuzz::run(const std::string& folder) {
  folder_ = folder;
  fs::create_directories(folder_ / "corpus");
  if (has_corpus_) kept_ = last_number();
  while (!is_over()) one_round();
  sample_pairs();
  write_text_file(folder_ / "coverage.json", coverage_json().dump(1) + "\n");
}

int64_t Fuzz::last_number() const {
  int64_t last = 0;
  const std::string begin = fmt::format("{}-", settings_.seed);
  for (const auto& entry : fs::directory_iterator(folder_ / "corpus")) {
    const std::string name = entry.path().stem().string();
    if (name.starts_with(begin))
      last = std::max<int64_t>(last, std::atoll(name.c_str() + begin.size()));
  }
  return last;
}

double Fuzz::seconds_left() const { return settings_.minutes * 60 - seconds_since(start_); }

bool Fuzz::is_over() const {
  const bool failed = settings_.max_fail > 0 && std::ssize(unexpected_) >= settings_.max_fail;
  const bool spent = settings_.minutes > 0 ? seconds_left() <= 0 : drawn_ >= settings_.count;
  return failed || spent || interrupted_();
}

void Fuzz::one_round() {
  const int64_t most = rounds_ < 3 ? kCasesOfFirst << rounds_ : kCasesOfRound;
  const int64_t left = settings_.minutes > 0 ? most : settings_.count - drawn_;
  PairCoverage expected = coverage_;  // a draw counts as run until the round ends
  Round round;
  std::map<std::string, DrawnCase> drawn;
  for (int64_t i = 0; i < std::min(left, most); ++i) draw(expected, round.cases, drawn);
  round.folder = (folder_ / "rounds" / std::to_string(++rounds_)).string();
  if (settings_.minutes > 0) round.budget_s = std::max(1.0, seconds_left());
  const std::vector<judge::CaseResult> results = run_round_(std::move(round));
  for (const judge::CaseResult& result : results) take(result, drawn.at(result.spec.name));
  for (const auto& [name, one] : drawn) {
    if (!one.kept) fs::remove(one.file);
  }
}

void Fuzz::draw(PairCoverage& expected, std::vector<CaseSpec>& cases,
                std::map<std::string, DrawnCase>& drawn) {
  const int64_t number = ++drawn_;
  std::optional<CaseSettings> found;
  if (number % kPairs != 0) {
    found = drawer_.draw_registered(random_);
  } else if (number % (kPairs * kAtEdges) == 0) {
    found = drawer_.draw_at_edge(random_);
  }
  const CaseSettings settings = found ? *found : drawer_.draw_missing(coverage_, expected, random_);
  expected.add(catalog_.kinds_in(settings));
  const std::string name = fmt::format("{}-{:06}", settings_.seed, kept_ + number);
  const fs::path file = folder_ / "corpus" / (name + ".yaml");
  write_text_file(file, scenario_text(settings, fmt::format("shardproof fuzz --seed {}, case {}",
                                                            settings_.seed, number)));
  for (const Backend backend : settings_.backends) {
    WorldChoice world = world_;
    world.backend = backend;
    CheckedCase checked = check_settings(settings, file.string(), world);
    SHARDPROOF_ASSERT(checked.spec.has_value(), "a drawn case is refused: " + checked.sentence);
    drawn[checked.spec->name] = {.settings = settings, .file = file};
    cases.push_back(std::move(*checked.spec));
  }
}

void Fuzz::take(const judge::CaseResult& result, DrawnCase& drawn) {
  if (result.verdict == Verdict::kRefused) {
    ++refused_;
    refusals_.try_emplace(first_line(result.message), drawn.file.string());
    return;
  }
  ++run_count_;
  for (const DrawnOption& option : catalog_.options()) {
    if (!option.restricted) continue;
    const auto given = drawn.settings.find(option.path);
    chosen_.emplace(option.path,
                    given == drawn.settings.end() ? option.default_value : given.value());
  }
  undecided_ += !result.account.unresolved.empty();
  const bool is_judged = result.verdict == Verdict::kMatch || result.verdict == Verdict::kMismatch;
  if (is_judged) drawn.kept = coverage_.add(catalog_.kinds_in(drawn.settings)) > 0 || drawn.kept;
  if (result.as_expected) return;
  drawn.kept = true;
  unexpected_.push_back(
      {{"case", result.spec.name}, {"finding", failure_text(result)}, {"replay", result.replay}});
  judge::CaseResult& kept = status_of_.emplace_back();
  kept.verdict = result.verdict;
  kept.as_expected = false;
}

// Of pairs drawn among all: which are valid, and which of those have run.
void Fuzz::sample_pairs() {
  for (int64_t i = 0; i < std::min(kSampledPairs, drawn_) && !interrupted_(); ++i) {
    const KindPair pair = coverage_.any_pair(random_);
    ++sampled_;
    if (coverage_.has_run(pair)) {
      ++sampled_run_;
      ++sampled_valid_;
    } else if (drawer_.draw(pair, random_, kSampleTries)) {
      ++sampled_valid_;
      if (lacking_.size() < 200) {
        lacking_.push_back(catalog_.describe(pair.first) + " and " +
                           catalog_.describe(pair.second));
      }
    }
  }
}

std::vector<std::string> Fuzz::missing_values() const {
  std::vector<std::string> missing;
  for (size_t kind = 0; kind < catalog_.kinds().size(); ++kind) {
    if (coverage_.cases_with(kind) == 0) missing.push_back(catalog_.describe(kind));
  }
  return missing;
}

std::vector<std::string> Fuzz::missing_choices() const {
  std::vector<std::string> missing;
  for (const DrawnOption& option : catalog_.options()) {
    if (!option.restricted || option.candidates.size() < 2) continue;
    for (const json& value : option.candidates) {
      if (chosen_.contains({option.path, value})) continue;
      missing.push_back(fmt::format("{}={}", option.path,
                                    value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
  return missing;
}

json Fuzz::coverage_json() const {
  json values = json::object();
  for (size_t kind = 0; kind < catalog_.kinds().size(); ++kind) {
    const ValueKind& one = catalog_.kinds()[kind];
    values[catalog_.options()[one.option].path][one.label] = coverage_.cases_with(kind);
  }
  const DrawCounts& draws = drawer_.counts();
  return {{"format", "shardproof-coverage/1"},
          {"seed", settings_.seed},
          {"cases",
           {{"drawn", drawn_},
            {"run", run_count_},
            {"refused_by_ranks", refused_},
            {"undecided", undecided_}}},
          {"draws",
           {{"checked", draws.drawn},
            {"refused", draws.refused},
            {"refused_by_key", draws.refused_by}}},
          {"refusals", refusals_},
          {"values", values},
          {"values_not_run", missing_values()},
          {"choices_not_run", missing_choices()},
          {"pairs",
           {{"run", coverage_.pairs_run()},
            {"given_up", coverage_.pairs_given_up()},
            {"sampled", sampled_},
            {"sampled_valid", sampled_valid_},
            {"sampled_run", sampled_run_},
            {"lacking", lacking_}}},
          {"unexpected", unexpected_}};
}

std::string Fuzz::coverage_text() const {
  const size_t missing = missing_values().size(), kinds = catalog_.kinds().size();
  const DrawCounts& draws = drawer_.counts();
  return fmt::format(
      "{:.0f}% of {} drawn settings were refused before a run\n"
      "{} of {} kinds of values have run, and {} pairs of them\n"
      "{} of {} pairs drawn at random are valid, and {} of these have run\n",
      percent(draws.refused, draws.drawn), draws.drawn, kinds - missing, kinds,
      coverage_.pairs_run(), sampled_valid_, sampled_, sampled_run_);
}

std::string Fuzz::text(bool coverage) const {
  const auto failed = std::ssize(unexpected_);
  std::string text = fmt::format("\n{} (seed {}): {} match, {} refused, {} failed\n",
                                 count_of(run_count_ + refused_, "random case"), settings_.seed,
                                 run_count_ - failed, refused_, failed);
  if (undecided_ > 0) {
    text += fmt::format("{} of them had tensors that could not be judged in their precision\n",
                        undecided_);
  }
  for (const std::string& choice : missing_choices()) {
    text += fmt::format("no case with {} ran; to see whether one can, restrict the key to it\n",
                        choice);
  }
  if (coverage) text += coverage_text();
  for (size_t i = 0; i < std::min(unexpected_.size(), kShownUnexpected); ++i) {
    text += fmt::format("{}: {}\n  replay: {}\n", unexpected_[i]["case"].get<std::string>(),
                        unexpected_[i]["finding"].get<std::string>(),
                        unexpected_[i]["replay"].get<std::string>());
  }
  return text + fmt::format("all of it: {}\n", (folder_ / "coverage.json").string());
}

}  // namespace shardproof::sim::explore
