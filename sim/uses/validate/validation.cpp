#include "sim/uses/validate/validation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/count_of.h"
#include "base/elapsed.h"
#include "base/error.h"
#include "base/utf8.h"
#include "sim/judge/verdict/verdict.h"
#include "sim/run/case_check.h"
#include "sim/run/golden_store.h"
#include "sim/uses/validate/blame.h"
#include "sim/uses/validate/environment.h"
#include "sim/uses/validate/groups.h"
#include "sim/uses/validate/measure_times.h"
#include "sim/uses/validate/suite.h"
#include "sim/uses/validate/training.h"
#include "sim/uses/validate/validate_rank.h"

namespace shardproof::sim::validate {
namespace {

constexpr size_t kListedPairs = 100;
constexpr int64_t kStagesToEnd = 2;  // by a host, after which it is left out of all others

class Validation {
 public:
  using OnStage = std::function<void(const StageResult&, const std::vector<ValidationFinding>&)>;

  Validation(world::WorldPool& pool, const Suite& suite, const ValidateSettings& settings,
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
    if (suite.nodes > 0) world_.ranks_per_node = settings.world_size / suite.nodes;
    // Until the hosts are known, all ranks count as one.
    result_.hosts = hosts_of(std::vector<std::pair<std::string, std::string>>(
                                 static_cast<size_t>(settings.world_size), {"this host", ""}),
                             suite.ranks_per_host);
  }

  ValidationResult run() {
    check_fits(suite_, settings_.world_size, std::nullopt);
    members_ = all_ranks();
    learn_hosts();
    run_stage(Stage::kEnvironment, 0, [this](StageResult& stage) { environment(stage); });
    for (int64_t round = 0; goes_on(round); ++round) one_round(round);
    result_.interrupted = pool_.interrupted();
    if (!result_.interrupted && result_.findings.empty()) require_checks();
    result_.seconds = seconds_since(start_);
    result_.exit_status = result_.interrupted ? 130 : exit_status_of(result_.findings);
    return std::move(result_);
  }

 private:
  void require_checks() {
    auto finding = nothing_compared(result_);
    if (!finding) finding = idle_fault(result_, suite_, acted_);
    if (!finding) return;
    result_.findings.push_back(std::move(*finding));
    ++result_.stages.back().findings;
  }

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

  std::vector<int64_t> all_ranks() const {
    std::vector<int64_t> ranks(static_cast<size_t>(settings_.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  void run_stage(Stage which, int64_t round, const std::function<void(StageResult&)>& run) {
    if ((lost_ && found_.empty()) || pool_.interrupted()) return;
    // What befell the search for hosts is a finding, also where the suite leaves the stage out.
    if (!suite_.has(which) && (which != Stage::kEnvironment || found_.empty())) return;
    StageResult stage{.stage = which, .round = round};
    const auto start = std::chrono::steady_clock::now();
    const auto on_hosts = [&](const std::vector<int64_t>& hosts) {
      members_.clear();
      for (const int64_t rank : all_ranks()) {
        const bool is_there = std::ranges::find(hosts, result_.hosts.of(rank)) != hosts.end();
        if (is_there) members_.push_back(rank);
      }
      ended_ = {};
      run(stage);
      return lost_ || pool_.interrupted() ? HostsRun{} : ended_;
    };
    std::vector<int64_t> hosts;
    for (int64_t host = 0; host < result_.hosts.count(); ++host) {
      const bool gone = ended_stages_[host] >= kStagesToEnd;
      if (gone) stage.without.push_back(result_.hosts.name(host));
      if (!gone) hosts.push_back(host);
    }
    for (const int64_t host : run_on_hosts(hosts, on_hosts).left_out) {
      ++ended_stages_[host];
      stage.without.push_back(result_.hosts.name(host));
    }
    if (lost_) stage.without.clear();  // nor did the others go on
    stage.went_on = !stage.without.empty() && std::ssize(stage.without) < result_.hosts.count();
    stage.seconds = seconds_since(start);
    if (pool_.interrupted()) return;  // how it ended says nothing
    std::vector<ValidationFinding> found;
    for (ValidationFinding& finding : std::exchange(found_, {})) keep(std::move(finding), found);
    stage.findings = std::ssize(found);
    result_.stages.push_back(stage);
    on_stage_(stage, found);
    for (ValidationFinding& finding : found) keep(std::move(finding), result_.findings);
  }

  // A soak would list the same host again and again.
  static void keep(ValidationFinding finding, std::vector<ValidationFinding>& all) {
    const auto alike = [&](const ValidationFinding& other) {
      return other.stage == finding.stage && other.kind == finding.kind &&
             other.hosts == finding.hosts && other.ranks == finding.ranks &&
             other.link == finding.link && other.case_name == finding.case_name;
    };
    if (std::ranges::none_of(all, alike)) all.push_back(std::move(finding));
  }

  // The requests are ours: what a rank calls bad input is a limit of the machine.
  static void require_no_shortage(const std::vector<RankEnding>& endings) {
    for (const RankEnding& ending : endings) {
      if (ending.kind != ResultKind::kBadInput) continue;
      throw Error({.kind = ErrorKind::kBadInput, .what = ending.message, .fix = ""});
    }
  }

  // The members' reports by process; none where one did not finish, which is a finding.
  std::map<int64_t, StageReport> reports_of(const std::vector<RankEnding>& endings,
                                            const CaseSpec& spec, const StageRequest& request) {
    if (pool_.interrupted()) return {};
    if (settings_.on_this_machine) require_no_shortage(endings);
    std::vector<ValidationFinding> bad =
        findings_of_endings(endings, request.stage, request.round, result_.hosts, lost_);
    add_acted(endings, spec, request, acted_);
    found_.insert(found_.end(), bad.begin(), bad.end());
    if (!bad.empty()) {
      ended_ = {.finished = false, .stopped = hosts_that_stopped(endings, result_.hosts)};
      return {};
    }
    std::map<int64_t, StageReport> reports;
    for (const int64_t rank : members_) {
      reports[rank] = decode_stage_report(endings[static_cast<size_t>(rank)].bytes);
      for (const size_t fault : reports[rank].json.at("acted")) acted_.insert(fault);
    }
    return reports;
  }

  StageRequest request_for(Stage stage, int64_t round) const {
    return {.stage = stage,
            .round = round,
            .suite = suite_,
            .host_of = hosts_known_ ? result_.hosts.of_rank : std::vector<int64_t>(),
            .members = members_,
            .training = nlohmann::json()};
  }

  std::map<int64_t, StageReport> run_ranks(const StageRequest& request) {
    const CaseSpec spec = case_of(request, world_, settings_.world_size);
    return reports_of(pool_.run_case(spec, -1, false), spec, request);
  }

  void learn_hosts() {
    const auto reports = run_ranks(request_for(Stage::kEnvironment, 0));
    if (reports.empty()) return;
    std::vector<Facts> facts;
    std::vector<std::pair<std::string, std::string>> names_and_boots;
    for (const auto& [rank, report] : reports) {
      facts.push_back(report.json.at("facts").get<Facts>());
      names_and_boots.emplace_back(facts.back()["host"], facts.back()["boot"]);
    }
    result_.hosts = hosts_of(names_and_boots, suite_.ranks_per_host);
    hosts_known_ = true;
    check_fits(suite_, settings_.world_size, result_.hosts.count());
    for (int64_t host = 0; host < result_.hosts.count(); ++host) {
      facts_.push_back(facts[static_cast<size_t>(result_.hosts.ranks_of(host).front())]);
    }
    result_.environment = environment_json(facts_, result_.hosts, {});
  }

  void environment(StageResult& stage) {
    if (!hosts_known_) return;
    std::map<int64_t, double> offsets;
    std::vector<ClockOffset> clocks(static_cast<size_t>(settings_.world_size),
                                    {0, std::numeric_limits<double>::infinity()});
    for (const auto& [rank, report] : run_ranks(request_for(stage.stage, 0))) {
      const nlohmann::json& clock = report.json.at("clock");
      clocks[static_cast<size_t>(rank)].uncertainty = clock.at(1);
      offsets[rank] = clock.at(0);
    }
    if (offsets.empty()) return;
    const std::vector<double> seconds = by_rank(offsets, settings_.world_size);
    for (size_t rank = 0; rank < clocks.size(); ++rank) clocks[rank].seconds = seconds[rank];
    const auto off = clocks_off(clocks, result_.hosts, suite_.clock_limit_s);
    found_.insert(found_.end(), off.begin(), off.end());
    result_.environment = environment_json(facts_, result_.hosts, clocks);
    const size_t odd = odd_facts(facts_).size();
    stage.note = count_of(std::ssize(facts_), "host");
    if (odd > 0) stage.note += ", " + count_of(static_cast<int64_t>(odd), "odd fact");
  }

  void exchange(StageResult& stage) {
    std::vector<WrongResult> evidence;
    int64_t wrong = 0;
    std::set<std::string> left_out(result_.left_out.begin(), result_.left_out.end());
    for (const auto& [rank, report] : run_ranks(request_for(stage.stage, stage.round))) {
      const auto done = report.json.get<ExchangeReport>();
      stage.checks += done.checks;
      stage.elements += done.elements;
      wrong += done.wrong_checks;
      evidence.insert(evidence.end(), done.evidence.begin(), done.evidence.end());
      left_out.insert(done.left_out.begin(), done.left_out.end());
    }
    result_.left_out.assign(left_out.begin(), left_out.end());
    const auto blamed = blame(stage.stage, stage.round, evidence, result_.hosts);
    found_.insert(found_.end(), blamed.begin(), blamed.end());
    stage.note =
        fmt::format("{} results of {} elements, {} wrong", stage.checks, stage.elements, wrong);
  }

  void times(StageResult& stage) {
    const Hosts& hosts = result_.hosts;
    const double factor = settings_.slow_factor;
    StageRequest request = request_for(stage.stage, stage.round);
    const auto run = [&](const PairingsPart& part) {
      request.pairings = part;
      return run_ranks(request);
    };
    const auto pairings = pairings_of(std::ssize(members_), suite_.pair_rounds, stage.round);
    const auto measured = measure_times(hosts, members_, pairings, factor, run);
    if (!measured) return;
    result_.times = to_json(*measured, hosts, kListedPairs);
    stage.checks = std::ssize(measured->pairs);
    stage.note = medians_text(result_.times);
    if (factor <= 0) return;
    const auto slow = slow_ones(*measured, hosts, factor, stage.round);
    found_.insert(found_.end(), slow.begin(), slow.end());
  }

  void training(StageResult& stage) {
    const std::vector<CaseSpec> cases = settings_.cases(static_cast<int64_t>(members_.size()));
    if (cases.empty()) stage.note = fmt::format("no case for {} ranks", members_.size());
    for (CaseSpec spec : cases) {
      spec.world = world_;
      const auto golden = golden_of(spec, stage.round);
      if (!golden) continue;
      std::vector<RotatedRun> runs;
      for (const int64_t shift : shifts_of(members_, result_.hosts.of_rank, suite_.rotations)) {
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
      for (ValidationFinding& one :
           judge_rotations(spec.name, runs, result_.hosts.of_processes(members_), stage.round)) {
        if (!one.hosts.empty()) {  // else ranks of the case
          for (int64_t& rank : one.ranks) rank = members_[static_cast<size_t>(rank)];
        }
        found_.push_back(narrowed(std::move(one), result_.findings));
        found_.back().case_name = spec.name;
      }
      note_digests(runs, stage);
    }
  }

  static void note_digests(const std::vector<RotatedRun>& runs, StageResult& stage) {
    size_t digests = 0;
    for (const TensorDigests& rank : runs.front().digests) digests += rank.size();
    const auto equal = std::ranges::count(runs, runs.front().digests, &RotatedRun::digests);
    stage.elements += static_cast<int64_t>(digests * runs.size());
    stage.note =
        fmt::format("{} tensors, {} of {} runs with equal digests", digests, equal, runs.size());
  }

  std::shared_ptr<const run::GoldenStore::Golden> golden_of(const CaseSpec& spec, int64_t round) {
    std::shared_ptr<const run::GoldenStore::Golden> golden;
    ResultKind kind = ResultKind::kBadInput;
    std::string why;
    try {
      run::check_case(spec);
      goldens_.get(spec, [&golden](auto made) { golden = std::move(made); });
      pool_.wait_until([&golden] { return golden != nullptr; });
      if (golden->outcome.ok) return golden;
      kind = golden->outcome.kind;
      why = golden->outcome.message;
    } catch (const Error& error) {
      why = error.what();
    }
    // A case, or a limit of this machine, and no host of a job.
    if (settings_.on_this_machine && kind == ResultKind::kBadInput) {
      throw Error({.kind = ErrorKind::kBadInput, .what = spec.name + ": " + why, .fix = ""});
    }
    if (!pool_.interrupted()) {
      found_.push_back({.stage = Stage::kTraining,
                        .kind = FindingKind::kBadInput,
                        .round = round,
                        .message = fmt::format("{}: {}", spec.name, why),
                        .case_name = spec.name});
    }
    return nullptr;
  }

  // Nothing where the ranks did not finish.
  std::optional<RotatedRun> run_rotation(const CaseSpec& spec, int golden_fd, int64_t shift,
                                         const StageResult& stage) {
    StageRequest request = request_for(stage.stage, stage.round);
    request.training = to_json(spec);
    request.shift = shift;
    const CaseSpec of_stage = case_of(request, world_, settings_.world_size);
    const auto endings = pool_.run_case(of_stage, golden_fd, false);
    const auto reports = reports_of(endings, of_stage, request);
    if (reports.empty()) return std::nullopt;
    RotatedRun run{.shift = shift};
    std::vector<RankEnding> by_rank;
    for (const int64_t process : rotation_of(members_, shift)) {
      RankEnding ending = endings[static_cast<size_t>(process)];
      ending.rank = static_cast<int64_t>(by_rank.size());
      ending.bytes = reports.at(process).case_report;
      by_rank.push_back(std::move(ending));
      run.digests.push_back(reports.at(process).json.at("digests").get<TensorDigests>());
    }
    const judge::CaseResult result = judge::judge(spec, by_rank);
    run.matches = result.verdict == Verdict::kMatch;
    if (run.matches) return run;
    run.verdict =
        fmt::format("{} ({}): {}", result.verdict, result.kind, first_line(result.message));
    if (result.divergence) run.wrong_ranks = result.divergence->ranks;
    return run;
  }

  world::WorldPool& pool_;
  const Suite& suite_;
  const ValidateSettings& settings_;
  OnStage on_stage_;
  run::GoldenStore goldens_;
  WorldSpec world_;
  ValidationResult result_;
  std::vector<ValidationFinding> found_;     // of the stage under way
  std::vector<int64_t> members_ = {};        // ranks that take part in it
  HostsRun ended_ = {};                      // how its last run did
  std::map<int64_t, int64_t> ended_stages_;  // by host: how many it has ended
  std::set<size_t> acted_ = {};              // of the suite's faults
  std::vector<Facts> facts_ = {};            // by host
  bool hosts_known_ = false;
  bool lost_ = false;  // the ranks are gone and do not come back
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

ValidationResult validate(
    world::WorldPool& pool, const Suite& suite, const ValidateSettings& settings,
    const std::function<void(const StageResult&, const std::vector<ValidationFinding>&)>&
        on_stage) {
  return Validation(pool, suite, settings, on_stage).run();
}

}  // namespace shardproof::sim::validate
