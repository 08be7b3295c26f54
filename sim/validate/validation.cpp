#include "sim/validate/validation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "base/elapsed.h"
#include "base/error.h"
#include "sim/judge/verdict/verdict.h"
#include "sim/run/case_check.h"
#include "sim/run/golden_store.h"
#include "sim/validate/blame.h"
#include "sim/validate/endings.h"
#include "sim/validate/environment.h"
#include "sim/validate/rotation.h"
#include "sim/validate/times.h"
#include "sim/validate/training.h"
#include "sim/validate/validate_rank.h"

namespace shardproof::sim {
namespace {

constexpr size_t kListedPairs = 100;

class Validation {
 public:
  using OnStage = std::function<void(const StageResult&, const std::vector<ValidationFinding>&)>;

  Validation(WorldPool& pool, const Suite& suite, const ValidateSettings& settings,
             OnStage on_stage)
      : pool_(pool),
        suite_(suite),
        settings_(settings),
        on_stage_(std::move(on_stage)),
        goldens_(pool, settings.use_cache, std::nullopt) {
    result_.world_size = settings.world_size;
    world_.backend = settings.backend;
    world_.device = settings.device;
    world_.hang_s = suite.hang_s;
    world_.deadline_s = suite.deadline_s;
    // Until the hosts are known, all ranks count as one.
    result_.hosts = hosts_of(std::vector<std::pair<std::string, std::string>>(
                                 static_cast<size_t>(settings.world_size), {"this host", ""}),
                             suite.ranks_per_host);
  }

  ValidationResult run() {
    check_mesh();
    check_faults();
    run_stage(Stage::kEnvironment, 0, [this](StageResult& stage) { environment(stage); });
    for (int64_t round = 0; goes_on(round); ++round) one_round(round);
    result_.interrupted = pool_.interrupted();
    result_.seconds = seconds_since(start_);
    result_.exit_status = result_.interrupted ? 130 : exit_status_of(result_.findings);
    return std::move(result_);
  }

 private:
  bool goes_on(int64_t round) const {
    if (lost_ || pool_.interrupted()) return false;
    if (settings_.minutes > 0) return round == 0 || seconds_since(start_) < 60 * settings_.minutes;
    return round < suite_.rounds;
  }

  void one_round(int64_t round) {
    run_stage(Stage::kGroups, round, [&](StageResult& stage) { exchange(stage); });
    run_stage(Stage::kPairs, round, [&](StageResult& stage) { exchange(stage); });
    // Without --minutes, times and training once.
    if (round > 0 && settings_.minutes == 0) return;
    run_stage(Stage::kTimes, round, [&](StageResult& stage) { times(stage); });
    run_stage(Stage::kTraining, round, [&](StageResult& stage) { training(stage); });
  }

  void run_stage(Stage which, int64_t round, const std::function<void(StageResult&)>& run) {
    // The hosts are always needed, without a verdict where the suite leaves the stage out.
    if (lost_ || pool_.interrupted()) return;
    if (!suite_.has(which) && which != Stage::kEnvironment) return;
    StageResult stage{.stage = which, .round = round};
    found_.clear();
    const auto start = std::chrono::steady_clock::now();
    run(stage);
    stage.seconds = seconds_since(start);
    if (pool_.interrupted()) return;  // how it ended says nothing
    stage.findings = static_cast<int64_t>(found_.size());
    if (suite_.has(which) || !found_.empty()) {
      result_.stages.push_back(stage);
      on_stage_(stage, found_);
    }
    for (ValidationFinding& finding : found_) keep(std::move(finding));
  }

  // A soak would list the same host again and again.
  void keep(ValidationFinding finding) {
    const auto alike = [&](const ValidationFinding& other) {
      return other.stage == finding.stage && other.kind == finding.kind &&
             other.hosts == finding.hosts && other.ranks == finding.ranks &&
             other.link == finding.link;
    };
    const auto& all = result_.findings;
    if (std::none_of(all.begin(), all.end(), alike)) result_.findings.push_back(std::move(finding));
  }

  // The reports of all ranks by process; none where one did not finish, which is a finding.
  std::vector<StageReport> reports_of(const std::vector<RankEnding>& endings, Stage stage,
                                      int64_t round) {
    if (pool_.interrupted()) return {};
    std::vector<ValidationFinding> bad =
        findings_of_endings(endings, stage, round, result_.hosts, lost_);
    found_.insert(found_.end(), bad.begin(), bad.end());
    if (!bad.empty()) return {};
    std::vector<StageReport> reports;
    for (const RankEnding& ending : endings) reports.push_back(decode_stage_report(ending.bytes));
    return reports;
  }

  StageRequest request_for(Stage stage, int64_t round) const {
    return {.stage = stage,
            .round = round,
            .suite = suite_,
            .host_of = hosts_known_ ? result_.hosts.of_rank : std::vector<int64_t>(),
            .training = nlohmann::json()};
  }

  std::vector<StageReport> run_ranks(const StageRequest& request) {
    const CaseSpec spec = case_of(request, world_, settings_.world_size);
    return reports_of(pool_.run_case(spec, -1, false), request.stage, request.round);
  }

  void environment(StageResult& stage) {
    const auto reports = run_ranks(request_for(stage.stage, 0));
    if (reports.empty()) return;
    std::vector<Facts> facts;
    std::vector<std::pair<std::string, std::string>> said;
    for (const StageReport& report : reports) {
      facts.push_back(report.json.at("facts").get<Facts>());
      said.emplace_back(facts.back()["host"], facts.back()["boot"]);
    }
    result_.hosts = hosts_of(said, suite_.ranks_per_host);
    hosts_known_ = true;
    check_faults();
    std::vector<Facts> by_host;
    for (int64_t host = 0; host < result_.hosts.count(); ++host) {
      by_host.push_back(facts[static_cast<size_t>(result_.hosts.ranks_of(host).front())]);
    }
    std::vector<ClockOffset> clocks;
    if (suite_.has(Stage::kEnvironment)) {
      for (const StageReport& report : run_ranks(request_for(stage.stage, 0))) {
        const nlohmann::json& clock = report.json.at("clock");
        clocks.push_back({clock.at(0), clock.at(1)});
      }
      const auto off = clocks_off(clocks, result_.hosts, suite_.clock_limit_s);
      found_.insert(found_.end(), off.begin(), off.end());
    }
    result_.environment = environment_json(by_host, result_.hosts, clocks);
    const size_t odd = odd_facts(by_host).size();
    stage.note = fmt::format("{} host{}", by_host.size(), by_host.size() == 1 ? "" : "s");
    if (odd > 0) stage.note += fmt::format(", {} odd facts", odd);
  }

  void exchange(StageResult& stage) {
    std::vector<WrongResult> evidence;
    int64_t wrong = 0;
    std::set<std::string> left_out(result_.left_out.begin(), result_.left_out.end());
    for (const StageReport& report : run_ranks(request_for(stage.stage, stage.round))) {
      stage.checks += report.json.at("checks").get<int64_t>();
      stage.elements += report.json.at("elements").get<int64_t>();
      wrong += report.json.at("wrong_checks").get<int64_t>();
      for (const auto& one : report.json.at("evidence")) {
        evidence.push_back(evidence_from_json(one));
      }
      for (const auto& one : report.json.at("left_out")) left_out.insert(one.get<std::string>());
    }
    result_.left_out.assign(left_out.begin(), left_out.end());
    const auto blamed = blame(stage.stage, stage.round, evidence, result_.hosts);
    found_.insert(found_.end(), blamed.begin(), blamed.end());
    stage.note =
        fmt::format("{} results of {} elements, {} wrong", stage.checks, stage.elements, wrong);
  }

  void times(StageResult& stage) {
    Times times;
    int64_t rank = 0;
    for (const StageReport& report : run_ranks(request_for(stage.stage, stage.round))) {
      for (const auto& pair : report.json.at("pairs")) {
        times.pairs.push_back({rank, pair.at(0), pair.at(1), pair.at(2)});
      }
      times.compute_ms.push_back(report.json.at("compute_ms"));
      ++rank;
    }
    if (times.compute_ms.empty()) return;
    result_.times = to_json(times, result_.hosts, kListedPairs);
    stage.checks = static_cast<int64_t>(times.pairs.size());
    for (const char* where : {"in_host", "between_hosts"}) {
      const auto& one = result_.times.at(where);
      if (one.at("pairs") == 0) continue;
      stage.note +=
          fmt::format("{}{:.0f} us, {:.3g} GB/s {}", stage.note.empty() ? "" : "; ",
                      one.at("latency_us").get<double>(), one.at("gb_per_s").get<double>(),
                      std::string(where) == "in_host" ? "in a host" : "between hosts");
    }
    if (settings_.slow_factor <= 0) return;
    const auto slow = slow_ones(times, result_.hosts, settings_.slow_factor, stage.round);
    found_.insert(found_.end(), slow.begin(), slow.end());
  }

  // The runs of a case: once as it is, twice the same, and then moved.
  std::vector<int64_t> shifts() const {
    const int64_t hosts = result_.hosts.count(), size = settings_.world_size;
    const int64_t step = hosts > 1 && size % hosts == 0 ? size / hosts : 1;
    std::vector<int64_t> shifts = {0};
    for (int64_t k = 0; k < suite_.rotations; ++k) shifts.push_back(k * step % size);
    return shifts;
  }

  void training(StageResult& stage) {
    for (CaseSpec spec : settings_.cases) {
      spec.world = world_;
      const auto golden = golden_of(spec, stage.round);
      if (!golden) continue;
      std::vector<RotatedRun> runs;
      for (const int64_t shift : shifts()) {
        auto run = run_rotation(spec, golden->fd.get(), shift, stage);
        if (!run) return;
        result_.training.push_back({{"case", spec.name},
                                    {"round", stage.round},
                                    {"shift", shift},
                                    {"matches", run->matches},
                                    {"finding", run->verdict}});
        runs.push_back(std::move(*run));
        ++stage.checks;
      }
      const auto wrong = judge_rotations(spec.name, runs, result_.hosts, stage.round);
      found_.insert(found_.end(), wrong.begin(), wrong.end());
      note_digests(runs, stage);
    }
  }

  static void note_digests(const std::vector<RotatedRun>& runs, StageResult& stage) {
    size_t digests = 0;
    for (const TensorDigests& rank : runs.front().digests) digests += rank.size();
    const auto equal = std::count_if(runs.begin(), runs.end(), [&](const RotatedRun& run) {
      return run.digests == runs.front().digests;
    });
    stage.elements += static_cast<int64_t>(digests * runs.size());
    stage.note =
        fmt::format("{} tensors, {} of {} runs with equal digests", digests, equal, runs.size());
  }

  std::shared_ptr<const GoldenStore::Golden> golden_of(const CaseSpec& spec, int64_t round) {
    std::shared_ptr<const GoldenStore::Golden> golden;
    std::string why;
    try {
      check_case(spec);
      goldens_.get(spec, [&golden](auto made) { golden = std::move(made); });
      pool_.wait_until([&golden] { return golden != nullptr; });
      if (golden->outcome.ok) return golden;
      why = golden->outcome.message;
    } catch (const Error& error) {
      why = error.what();
    }
    if (!pool_.interrupted()) {
      found_.push_back({.stage = Stage::kTraining,
                        .kind = FindingKind::kBadInput,
                        .round = round,
                        .message = fmt::format("{}: {}", spec.name, why)});
    }
    return nullptr;
  }

  // Nothing where the ranks did not finish.
  std::optional<RotatedRun> run_rotation(const CaseSpec& spec, int golden_fd, int64_t shift,
                                         const StageResult& stage) {
    StageRequest request = request_for(stage.stage, stage.round);
    request.training = to_json(spec);
    request.shift = shift;
    const auto endings =
        pool_.run_case(case_of(request, world_, settings_.world_size), golden_fd, false);
    const std::vector<StageReport> reports = reports_of(endings, stage.stage, stage.round);
    if (reports.empty()) return std::nullopt;
    RotatedRun run{.shift = shift};
    std::vector<RankEnding> by_rank;
    for (int64_t rank = 0; rank < settings_.world_size; ++rank) {
      const auto process = static_cast<size_t>(process_of(rank, shift, settings_.world_size));
      RankEnding ending = endings[process];
      ending.rank = rank;
      ending.bytes = reports[process].case_report;
      by_rank.push_back(std::move(ending));
      run.digests.push_back(reports[process].json.at("digests").get<TensorDigests>());
    }
    const CaseResult result = judge(spec, by_rank);
    run.matches = result.verdict == Verdict::kMatch;
    if (run.matches) return run;
    run.verdict = fmt::format("{} ({}): {}", result.verdict, result.kind,
                              result.message.substr(0, result.message.find('\n')));
    if (result.divergence) run.wrong_ranks = result.divergence->ranks;
    return run;
  }

  void check_mesh() const {
    int64_t size = 1;
    for (const auto& [axis, one] : suite_.mesh) size *= one;
    if (suite_.mesh.empty() || size == settings_.world_size) return;
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("the mesh of {} is for {} ranks, there are {}", suite_.file,
                                     size, settings_.world_size),
                 .fix = "correct mesh, or leave it out"});
  }

  void check_faults() const {
    const int64_t hosts = result_.hosts.count();
    for (const PlantedFault& fault : suite_.faults) {
      int64_t most = fault.host;
      for (const int64_t host : fault.link) most = std::max(most, host);
      const bool unknown = hosts_known_ && most >= hosts;
      if (!unknown && fault.rank < settings_.world_size) continue;
      throw Error({.kind = ErrorKind::kBadInput,
                   .what = fmt::format("a fault of {} is on {} {}, and there are {}", suite_.file,
                                       unknown ? "host" : "rank", unknown ? most : fault.rank,
                                       unknown ? hosts : settings_.world_size),
                   .fix = "count from 0, and name one that is there"});
    }
  }

  WorldPool& pool_;
  const Suite& suite_;
  const ValidateSettings& settings_;
  OnStage on_stage_;
  GoldenStore goldens_;
  WorldSpec world_;
  ValidationResult result_;
  std::vector<ValidationFinding> found_;  // of the stage under way
  bool hosts_known_ = false;
  bool lost_ = false;  // the ranks are gone and do not come back
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

ValidationResult validate(
    WorldPool& pool, const Suite& suite, const ValidateSettings& settings,
    const std::function<void(const StageResult&, const std::vector<ValidationFinding>&)>&
        on_stage) {
  return Validation(pool, suite, settings, on_stage).run();
}

}  // namespace shardproof::sim
