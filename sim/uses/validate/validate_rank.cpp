#include "sim/uses/validate/validate_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string_view>

#include "base/elapsed.h"
#include "base/error.h"
#include "comm/mesh_comm.h"
#include "sim/uses/validate/environment.h"
#include "sim/uses/validate/exchange.h"
#include "sim/uses/validate/groups.h"
#include "sim/uses/validate/planted.h"
#include "sim/uses/validate/training.h"

namespace shardproof::sim::validate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kClockExchanges = 5;
constexpr int64_t kMatrixSize = 160;

// Passes the calls of communicators to the world.
class CallForwarder final : public CallListener {
 public:
  explicit CallForwarder(const world::RankEnv& env) : env_(env) {}
  void before_call(const Call& call) override {
    if (env_.on_call) env_.on_call(call);
  }
  void before_wait(const Call& call) override {
    if (env_.on_wait) env_.on_wait(call);
  }

 private:
  const world::RankEnv& env_;
};

std::optional<std::vector<RankPair>> pairs_from(const nlohmann::json& json) {
  if (json.is_null()) return std::nullopt;
  return json.get<std::vector<RankPair>>();
}

StageRequest request_of(const nlohmann::json& options) {
  return {.stage = options.at("stage").get<Stage>(),
          .round = options.at("round"),
          .suite = options.at("suite").get<Suite>(),
          .host_of = options.at("host_of").get<std::vector<int64_t>>(),
          .members = options.at("members").get<std::vector<int64_t>>(),
          .pairings = {.count = options.at("pairings"),
                       .briefly = options.at("briefly"),
                       .left_out = options.at("left_out").get<std::vector<int64_t>>(),
                       .again = pairs_from(options.at("again"))},
          .training = options.at("training"),
          .shift = options.at("shift")};
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class StageRun {
 public:
  StageRun(StageRequest request, const world::RankEnv& env)
      : request_(std::move(request)),
        env_(env),
        planted_(request_.host_of.empty() ? std::vector<PlantedFault>() : request_.suite.faults,
                 request_.stage, request_.round, request_.suite.seed, env.rank, hosts()),
        forwarder_(env_) {
    if (!planted_.is_empty()) {
      env_.make_backend = world::intercepted(
          env_.make_backend,
          {[this](world::CallInProgress& call) { return planted_.before_call(call); }});
    }
    if (request_.members.empty()) {
      for (int64_t rank = 0; rank < env_.world_size; ++rank) request_.members.push_back(rank);
    }
    place_ = place_of(env_.rank);
    comm_.emplace(Mesh::training({.tp = env_.world_size}), env_.rank, env_.make_backend,
                  &forwarder_);
  }

  std::string run(const world::RankMain& run_case) {
    if (place_ == count()) return encode(StageReport{nullptr});
    StageReport report = run_stage(run_case);
    report.json["acted"] = planted_.acted();
    return encode(report);
  }

 private:
  StageReport run_stage(const world::RankMain& run_case) {
    switch (request_.stage) {
      case Stage::kEnvironment:
        return {environment()};
      case Stage::kGroups:
        return {groups()};
      case Stage::kPairs:
        return {pairs()};
      case Stage::kTimes:
        return {times()};
      case Stage::kTraining:
        return training(run_case);
    }
    return {};
  }

  std::vector<int64_t> hosts() const {
    if (!request_.host_of.empty()) return request_.host_of;
    return std::vector<int64_t>(static_cast<size_t>(env_.world_size), 0);
  }

  int64_t count() const { return static_cast<int64_t>(request_.members.size()); }
  int64_t member(int64_t place) const { return request_.members[static_cast<size_t>(place)]; }
  // Its number among the members; their count where it is none.
  int64_t place_of(int64_t rank) const {
    const auto& all = request_.members;
    return std::find(all.begin(), all.end(), rank) - all.begin();
  }
  Communicator& all_members() { return comm_->of_ranks("world", request_.members); }

  double clock() const { return wall_seconds() + planted_.clock_offset_s(); }

  // Each rank in turn sends to the first one, which answers with its time. Half of the shortest
  // exchange is the uncertainty.
  ClockOffset clock_offset() {
    Communicator& world = all_members();
    const std::string label = "validate clock";
    ClockOffset best{0, std::numeric_limits<double>::infinity()};
    if (world.size() == 1) return {};
    const auto time = [&] {
      return at::full({1}, clock(), at::TensorOptions(at::kDouble)).to(at::Device(env_.device));
    };
    for (int64_t other = 1; other < world.size(); ++other) {
      for (int64_t i = 0; i < kClockExchanges; ++i) {
        if (place_ == 0) {
          world.recv(time(), other, label);
          world.send(time(), other, label);
        } else if (place_ == other) {
          const double before = clock();
          world.send(time(), 0, label);
          const double there = world.recv(time(), 0, label).item<double>();
          const double after = clock(), uncertainty = (after - before) / 2;
          if (uncertainty < best.uncertainty) best = {(before + after) / 2 - there, uncertainty};
        }
      }
    }
    return place_ == 0 ? ClockOffset{} : best;
  }

  nlohmann::json environment() {
    if (request_.host_of.empty()) {
      static const Facts facts = machine_facts();  // ranks that are threads share it
      return {{"facts", facts}};
    }
    const ClockOffset offset = clock_offset();
    return {{"clock", {offset.seconds, offset.uncertainty}}};
  }

  nlohmann::json groups() {
    Exchange exchange(request_.suite, env_.rank, env_.world_size, env_.device);
    for (RankGroup& group : groups_of(env_.rank, hosts(), request_.suite.mesh)) {
      std::erase_if(group.ranks, [this](int64_t rank) { return place_of(rank) == count(); });
      if (group.ranks.size() < 2) continue;
      exchange.run_group(comm_->of_ranks(group.name, group.ranks), request_.round);
    }
    return exchange.report();
  }

  // This round's pairings, or as many of them as the request names, one after the other. `meet`
  // gets the partner's number among the members.
  template <class Meet>
  void each_partner(const Meet& meet) {
    all_members();  // also of a rank that meets nobody: all of them make the group
    const auto rounds = pairings_of(count(), request_.suite.pair_rounds, request_.round);
    const int64_t end = std::min<int64_t>(std::ssize(rounds), request_.pairings.count);
    for (int64_t i = 0; i < end; ++i) {
      const int64_t partner = partner_of(place_, count(), rounds[static_cast<size_t>(i)]);
      if (partner >= 0) meet(partner);
    }
  }

  nlohmann::json pairs() {
    Exchange exchange(request_.suite, env_.rank, env_.world_size, env_.device);
    each_partner(
        [&](int64_t partner) { exchange.run_pair(all_members(), partner, request_.round); });
    return exchange.report();
  }

  bool is_left_out(int64_t other) const {
    const auto has = [](const auto& all, const auto& one) {
      return std::find(all.begin(), all.end(), one) != all.end();
    };
    const PairingsPart& part = request_.pairings;
    if (part.again && !has(*part.again, RankPair(std::minmax(env_.rank, other)))) return true;
    return has(part.left_out, env_.rank) || has(part.left_out, other);
  }

  // The shortest of so many round trips, in seconds.
  double round_trip(int64_t partner, const at::Tensor& message, int64_t trips,
                    const std::string& label) {
    Communicator& world = all_members();
    double best = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < trips; ++i) {
      const auto start = Clock::now();
      if (place_ < partner) {
        world.send(message, partner, label);
        world.recv(message, partner, label);
      } else {
        world.recv(message, partner, label);
        world.send(message, partner, label);
      }
      best = std::min(best, seconds_since(start));
    }
    return best;
  }

  double compute_ms() {
    const auto options = at::TensorOptions(at::kFloat).device(at::Device(env_.device));
    const at::Tensor matrix = at::ones({kMatrixSize, kMatrixSize}, options);
    double best = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i <= request_.suite.times_repeats; ++i) {
      const auto start = Clock::now();
      planted_.before_computing();
      at::mm(matrix, matrix).sum().item<float>();
      if (i > 0) best = std::min(best, seconds_since(start));
    }
    return 1e3 * best;
  }

  nlohmann::json times() {
    const auto options = at::TensorOptions(at::kByte).device(at::Device(env_.device));
    const at::Tensor small = at::zeros({8}, options);
    const at::Tensor large = at::zeros({request_.suite.times_bytes}, options);
    nlohmann::json pairs = nlohmann::json::array();
    const PairingsPart& part = request_.pairings;
    const double computing = part.briefly || part.again ? compute_ms() : 0;
    each_partner([&](int64_t partner) {
      if (is_left_out(member(partner))) return;
      const int64_t trips = part.briefly ? 1 : request_.suite.times_repeats;
      round_trip(partner, small, 1, "validate latency");  // warms up
      const double latency = round_trip(partner, small, trips, "validate latency") / 2;
      if (!part.briefly) round_trip(partner, large, 1, "validate bandwidth");
      const double transfer = round_trip(partner, large, trips, "validate bandwidth") / 2;
      if (partner < place_) return;
      pairs.push_back({member(partner), 1e6 * latency,
                       1e-9 * static_cast<double>(request_.suite.times_bytes) / transfer});
    });
    return {{"pairs", pairs}, {"compute_ms", computing}};
  }

  StageReport training(const world::RankMain& run_case) {
    world::RankEnv env = placed(env_, rotation_of(request_.members, request_.shift));
    TensorDigests digests;
    env.on_tensor = [&digests](const Observation& observation) {
      digests.push_back(digest_of_tensor(observation));
      return true;
    };
    StageReport report;
    report.case_report = run_case(case_spec_from_json(request_.training), env);
    report.json = {{"rank", env.rank}, {"digests", digests}};
    return report;
  }

  StageRequest request_;
  int64_t place_ = 0;  // among the members
  world::RankEnv env_;
  PlantedFaults planted_;
  CallForwarder forwarder_;
  std::optional<MeshComm> comm_;
};

}  // namespace

CaseSpec case_of(const StageRequest& request, const WorldSpec& world, int64_t world_size) {
  CaseSpec spec;
  spec.name = fmt::format("validate/{}", request.stage);
  spec.workload = kValidateWorkload;
  spec.parallel.tp = world_size;
  spec.world = world;
  spec.judged = false;
  spec.options = {{"stage", request.stage},
                  {"round", request.round},
                  {"suite", request.suite},
                  {"host_of", request.host_of},
                  {"members", request.members},
                  {"pairings", request.pairings.count},
                  {"briefly", request.pairings.briefly},
                  {"left_out", request.pairings.left_out},
                  {"again", request.pairings.again ? nlohmann::json(*request.pairings.again)
                                                   : nlohmann::json()},
                  {"training", request.training},
                  {"shift", request.shift}};
  if (!request.host_of.empty()) {
    spec.faults = world_faults(request.suite.faults, request.stage, request.host_of);
  }
  return spec;
}

void add_acted(const std::vector<RankEnding>& endings, const CaseSpec& spec,
               const StageRequest& request, std::set<size_t>& acted) {
  for (const RankEnding& ending : endings) {
    for (const FaultNote& note : ending.faults) {
      if (!note.fired) continue;
      const FaultSpec& planted = spec.faults[static_cast<size_t>(note.index)];
      for (size_t i = 0; i < request.suite.faults.size(); ++i) {
        const PlantedFault& fault = request.suite.faults[i];
        const bool is_same = fault.at_call == planted.at_call &&
                             std::string_view(name_of(fault.kind)) == name_of(planted.kind);
        if (is_same && acts_on(fault, request.stage, planted.rank, request.host_of))
          acted.insert(i);
      }
    }
  }
}

std::string encode(const StageReport& report) {
  const std::string json = report.json.dump();
  return std::to_string(json.size()) + "\n" + json + report.case_report;
}

StageReport decode_stage_report(const std::string& bytes) {
  const size_t line = bytes.find('\n');
  SHARDPROOF_ASSERT(line != std::string::npos && line < 20, "the size of a stage's report");
  const size_t size = std::stoul(bytes.substr(0, line));
  SHARDPROOF_ASSERT(line + 1 + size <= bytes.size(), "a whole report of a stage");
  return {.json = nlohmann::json::parse(bytes.substr(line + 1, size)),
          .case_report = bytes.substr(line + 1 + size)};
}

std::string validate_rank(const CaseSpec& spec, const world::RankEnv& env,
                          const world::RankMain& run_case) {
  StageRun run(request_of(spec.options), env);
  return run.run(run_case);
}

}  // namespace shardproof::sim::validate
