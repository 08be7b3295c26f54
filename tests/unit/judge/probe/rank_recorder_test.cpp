#include "sim/judge/probe/rank_recorder.h"

#include <catch2/catch.hpp>

#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

ResultRow observe_one(const CaseSpec& spec, const GoldenRecord& golden, const Observation& one) {
  return observe_all(spec, golden, {one}).rows.at(0);
}

}  // namespace

TEST_CASE("a rank's row says what it compared, where it lies and who else holds it", "[recorder]") {
  const CaseSpec spec = spec_of(2, 3);
  const auto golden = golden_from({seen("grad.w", numbered({6, 4}))});
  Observation piece = seen("grad.w", numbered({6, 4}).narrow(0, 2, 2));
  piece.layout = Layout({Cut::even(0, "tp")});
  const ResultRow row = observe_all(spec, golden, {piece}, 4).rows.at(0);
  CHECK(row.outcome == Outcome::kMatch);
  CHECK(row.rank == 4);
  CHECK(row.count == 8);
  CHECK(row.order == 0);
  CHECK(row.dtype == "float64");
  CHECK(row.layout == "S(0)tp");
  CHECK(row.replicas == std::vector<int64_t>{1, 4});
  CHECK(row.worst_ratio == 0);
}

TEST_CASE("a wrong element is found with its global and local index", "[recorder]") {
  const CaseSpec spec = spec_of(1, 3);
  const auto golden = golden_from({seen("grad.w", numbered({6, 4}))});
  Observation piece = seen("grad.w", numbered({6, 4}).narrow(0, 4, 2).clone());
  piece.layout = Layout({Cut::even(0, "tp")});
  piece.tensor[1][3] += 0.5;
  const RankReport report = observe_all(spec, golden, {piece}, 2);
  const ResultRow& row = report.rows.at(0);
  CHECK(row.is_wrong());
  CHECK(row.bad_count == 1);
  CHECK(row.worst_global_index == std::vector<int64_t>{5, 3});
  CHECK(row.worst_local_index == std::vector<int64_t>{1, 3});
  CHECK(row.global_shape == std::vector<int64_t>{6, 4});
  CHECK(row.actual_value - row.golden_value == Approx(0.5));
  REQUIRE(report.pieces.size() == 1);
  CHECK(report.pieces[0].actual[7] - report.pieces[0].golden[7] == Approx(0.5));
  CHECK(report.pieces[0].dims[0] == std::vector<int64_t>{4, 5});
}

TEST_CASE("problems name what is wrong before any value is compared", "[recorder]") {
  const CaseSpec spec = spec_of(1, 2);
  const auto golden = golden_from(
      {seen("grad.w", numbered({6, 4})), seen("ids", at::arange(4, at::kLong), Phase::kForward)});
  const auto problem = [&](const Observation& one) {
    const ResultRow row = observe_one(spec, golden, one);
    CHECK(row.is_wrong());
    return row.problem;
  };
  CHECK(problem(seen("grad.v", numbered({6, 4}))) == "the golden has no tensor of this name");
  CHECK(problem(seen("grad.w", numbered({6, 4}), Phase::kStep, 2)) ==
        "the golden has no tensor of this name");
  CHECK_THAT(problem(seen("grad.w", numbered({3, 4}))), Catch::Contains("wrong shape: [3, 4]"));
  CHECK_THAT(problem(seen("grad.w", numbered({6, 4}).to(at::kLong))),
             Catch::Contains("wrong dtype"));
  CHECK_THAT(problem(seen("ids", at::arange(4, at::kDouble), Phase::kForward)),
             Catch::Contains("wrong dtype"));
  Observation uneven = seen("grad.w", numbered({6, 4}));
  uneven.layout = Layout({Cut::even(0, "tp"), Cut::even(0, "tp")});
  CHECK_THAT(problem(uneven), Catch::Contains("does not fit"));
}

TEST_CASE("a float64 run may show no float32 tensor, not even a right one", "[recorder]") {
  const at::Tensor exact = numbered({5}).to(at::kFloat).to(at::kDouble);
  const auto golden = golden_from({seen("x.output", exact, Phase::kForward)});
  const ResultRow row =
      observe_one(spec_of(1, 1), golden, seen("x.output", exact.to(at::kFloat), Phase::kForward));
  CHECK(row.is_wrong());
  CHECK(row.problem == "float32 tensor in a float64 run");
  CHECK(observe_one(spec_of(1, 1, Precision::kFloat32), golden,
                    seen("x.output", exact.to(at::kFloat), Phase::kForward))
            .outcome == Outcome::kMatch);
}

TEST_CASE("an optimizer fed with golden gradients is judged at 1e-12 of the scale", "[recorder]") {
  const CaseSpec spec = spec_of(1, 1);
  const at::Tensor param = numbered({5});
  const double scale = param.abs().max().item<double>();
  const auto golden = golden_from({seen("param.w", param)});
  CHECK(observe_one(spec, golden, seen("fed.param.w", param + 0.99e-12 * scale)).outcome ==
        Outcome::kMatch);
  CHECK(observe_one(spec, golden, seen("fed.param.w", param + 1.01e-12 * scale)).is_wrong());
  CHECK(observe_one(spec, golden, seen("param.w", param + 0.99e-10 * scale)).outcome ==
        Outcome::kMatch);
  CHECK(observe_one(spec, golden, seen("param.w", param + 1.02e-10 * scale)).is_wrong());
}

TEST_CASE("activations are filtered when they are not recorded", "[recorder]") {
  CaseSpec spec = spec_of(1, 1);
  spec.record_activations = false;
  const auto golden = golden_from({seen("x.output", numbered({2}), Phase::kForward),
                                   seen("x.grad_input", numbered({2}), Phase::kBackward),
                                   seen("loss", numbered({}), Phase::kForward)});
  const RankRecorder recorder(spec, spec.parallel.mesh(), 0, &golden, {});
  CHECK_FALSE(recorder.listens(Phase::kBackward));
  const RankReport report =
      observe_all(spec, golden, {seen("x.output", numbered({2}) + 1, Phase::kForward)});
  CHECK(report.rows.empty());
  REQUIRE(report.unobserved.size() == 3);
  CHECK(report.unobserved[0].excuse == Excuse::kNotRecorded);
  CHECK(report.unobserved[1].excuse == Excuse::kNotRecorded);
  CHECK(report.unobserved[2].name == "loss");
  CHECK_FALSE(report.unobserved[2].excuse);
}

TEST_CASE("nobody listens to a case that is not judged", "[recorder]") {
  CaseSpec spec = spec_of(1, 1);
  spec.judged = false;
  RankRecorder recorder(spec, spec.parallel.mesh(), 0, nullptr, {});
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kRecompute, Phase::kStep}) {
    CHECK_FALSE(recorder.listens(phase));
  }
  recorder.observe(seen("grad.w", numbered({2})));
  CHECK(recorder.finish().rows.empty());
}

TEST_CASE("a recomputed forward must equal the forward to the bit", "[recorder]") {
  const CaseSpec spec = spec_of(1, 1);
  const at::Tensor output = numbered({4});
  const auto golden = golden_from({seen("x.output", output, Phase::kForward)});
  const Observation forward = seen("x.output", output, Phase::kForward);
  CHECK(observe_all(spec, golden, {forward, seen("x.output", output.clone(), Phase::kRecompute)})
            .rows.at(1)
            .outcome == Outcome::kMatch);
  const auto other =
      observe_all(spec, golden, {forward, seen("x.output", output + 1e-16, Phase::kRecompute)})
          .rows.at(1);
  CHECK(other.problem == "the recomputed forward differs from the forward");
  CHECK(observe_one(spec, golden, seen("x.output", output, Phase::kRecompute)).is_wrong());
}

TEST_CASE("the earliest failing tensors are kept, in golden order, not in the order seen",
          "[recorder]") {
  const CaseSpec spec = spec_of(1, 1);
  std::vector<Observation> all;
  for (int i = 0; i < 6; ++i) all.push_back(seen("grad." + std::to_string(i), numbered({3}, i)));
  const auto golden = golden_from(all);
  std::vector<Observation> backwards;
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    backwards.push_back(*one);
    backwards.back().tensor = backwards.back().tensor + 1;
  }
  const RankReport report = observe_all(spec, golden, backwards);
  std::vector<std::string> kept;
  for (const Piece& piece : report.pieces) kept.push_back(piece.name);
  std::sort(kept.begin(), kept.end());
  CHECK(kept == std::vector<std::string>{"grad.0", "grad.1", "grad.2"});
}

TEST_CASE("what is kept stays within its bytes", "[recorder]") {
  const CaseSpec spec = spec_of(1, 1);
  const int64_t half = static_cast<int64_t>(FailingPieces::kBytes) / 32;
  const auto golden =
      golden_from({seen("grad.a", numbered({half + 8})), seen("grad.b", numbered({half + 8}, 2))});
  const RankReport report = observe_all(
      spec, golden,
      {seen("grad.b", numbered({half + 8}, 2) + 1), seen("grad.a", numbered({half + 8}) + 1)});
  REQUIRE(report.pieces.size() == 1);
  CHECK(report.pieces[0].name == "grad.a");
}

TEST_CASE("digests tell bits apart, and calls so far are noted", "[recorder]") {
  const CaseSpec spec = spec_of(1, 1);
  const auto golden = golden_from({seen("grad.w", at::zeros({3}, at::kDouble))});
  RankRecorder recorder(spec, spec.parallel.mesh(), 0, &golden, [] { return int64_t{17}; });
  recorder.observe(seen("grad.w", at::zeros({3}, at::kDouble)));
  recorder.observe(seen("grad.w", at::tensor({0.0, -0.0, 0.0}, at::kDouble)));
  recorder.observe(seen("grad.w", at::zeros({3}, at::kDouble)));
  const RankReport report = recorder.finish();
  CHECK(report.rows[0].digest != report.rows[1].digest);
  CHECK(report.rows[0].digest == report.rows[2].digest);
  CHECK(report.rows[1].outcome == Outcome::kMatch);
  CHECK(report.rows[1].calls_before == 17);
}

namespace {

// A golden of the exact run and the members of an ensemble.
GoldenRecord golden_with_members(const std::vector<Observation>& exact,
                                 const std::vector<std::vector<Observation>>& members,
                                 const std::map<std::string, std::string>& metadata = {}) {
  GoldenRecorder recorder(true);
  for (const Observation& one : exact) recorder.observe(one);
  for (const std::vector<Observation>& member : members) {
    GoldenRecorder rounded(true);
    for (const Observation& one : member) rounded.observe(one);
    recorder.add_member(rounded);
  }
  const MemoryFile file;
  recorder.write(file.fd(), metadata);
  return GoldenRecord::from_fd(file.fd());
}

GoldenRecord golden_with_member(const std::vector<Observation>& exact,
                                const std::vector<Observation>& member,
                                const std::map<std::string, std::string>& metadata = {}) {
  return golden_with_members(exact, {member}, metadata);
}

}  // namespace

TEST_CASE("what few members allow is a match, whatever the others are", "[recorder]") {
  const CaseSpec spec = spec_of(1, 1, Precision::kBFloat16);
  const at::Tensor value = at::tensor({1.0, -2.0}, at::kDouble);
  const auto member = [&](double error) { return std::vector{seen("grad.w", value + error)}; };
  const auto outcome = [&](const GoldenRecord& golden, double error) {
    return observe_one(spec, golden, seen("grad.w", value + error)).outcome;
  };
  const auto few = golden_with_members({seen("grad.w", value)}, {member(0.01), member(0.02)});
  CHECK(outcome(few, 0.11) == Outcome::kMatch);  // 6 * 0.02
  CHECK(outcome(few, 0.13) == Outcome::kMismatch);
  const auto wide =
      golden_with_members({seen("grad.w", value)}, {member(0.01), member(0.02), member(0.04)});
  CHECK(outcome(wide, 0.11) == Outcome::kMatch);
  CHECK(outcome(wide, 0.13) == Outcome::kMatch);  // 6 * 0.04
  CHECK(outcome(wide, 0.26) == Outcome::kMismatch);
  const auto unresolved =
      golden_with_members({seen("grad.w", value)}, {member(0.01), member(0.02), member(0.6)});
  CHECK(outcome(unresolved, 0.11) == Outcome::kMatch);
  CHECK(outcome(unresolved, 0.13) == Outcome::kUnresolved);
  CHECK(outcome(unresolved, 3.5) == Outcome::kUnresolved);
  CHECK(outcome(unresolved, 3.7) == Outcome::kMismatch);  // more than 6 * 0.6
}

TEST_CASE("what correct runs scatter over is unresolved, and wrong only beyond it", "[recorder]") {
  const CaseSpec spec = spec_of(1, 1, Precision::kBFloat16);
  const at::Tensor value = at::tensor({1.0, -2.0}, at::kDouble);
  const auto golden =
      golden_with_member({seen("grad.w", value)}, {seen("grad.w", value + 0.6)});  // of scale 2
  const ResultRow near = observe_one(spec, golden, seen("grad.w", value * 1.5));
  CHECK(near.outcome == Outcome::kUnresolved);
  CHECK_THAT(near.reason, Catch::Contains("scatter over 0.3 of its scale"));
  CHECK(observe_one(spec, golden, seen("grad.w", value * 2)).outcome == Outcome::kUnresolved);
  CHECK(observe_one(spec, golden, seen("grad.w", value * 3)).outcome == Outcome::kMismatch);
  const auto exact = golden_with_member({seen("grad.w", value)}, {seen("grad.w", value + 0.01)});
  CHECK(observe_one(spec, exact, seen("grad.w", value)).outcome == Outcome::kMatch);
}

TEST_CASE("a step that only some correct runs skip is unresolved, done or not", "[recorder]") {
  const CaseSpec spec = spec_of(1, 1, Precision::kFloat16);
  const auto skipped = [](double yes) {
    return seen("metric.skipped", at::scalar_tensor(yes, at::kDouble));
  };
  const Observation gradient = seen("grad.w", numbered({3}));
  const auto taken = golden_with_member({skipped(0), gradient}, {skipped(1)});
  const RankReport left_out = observe_all(spec, taken, {skipped(1)});
  CHECK(left_out.rows[0].outcome == Outcome::kUnresolved);
  REQUIRE(left_out.unobserved.size() == 1);
  CHECK(left_out.unobserved[0].excuse == Excuse::kUnresolved);
  const auto not_taken = golden_with_member({skipped(1)}, {skipped(0), gradient});
  CHECK(observe_all(spec, not_taken, {skipped(0), gradient}).rows[1].outcome ==
        Outcome::kUnresolved);
  const auto sure = golden_with_member({skipped(1)}, {skipped(1)});
  CHECK(observe_all(spec, sure, {skipped(0), gradient}).rows[1].outcome == Outcome::kMismatch);
}

TEST_CASE("a skip that the parts of a sum decide is unresolved, and all that follows from it",
          "[recorder]") {
  const CaseSpec spec = spec_of(2, 1, Precision::kFloat16);
  const auto skipped = [](double yes, int64_t step = 1) {
    return seen("metric.skipped", at::scalar_tensor(yes, at::kDouble), Phase::kStep, step);
  };
  const Observation gradient = seen("grad.w", numbered({3})), later = skipped(0, 2);
  const std::vector<Observation> exact = {skipped(1), later};
  const auto parted = golden_with_member(exact, exact, {{kPartedSkips, "1"}});
  const std::vector<Observation> taken = {skipped(0), gradient, skipped(1, 2)};
  const RankReport left = observe_all(spec, parted, taken);
  for (const ResultRow& row : left.rows) {
    INFO(row.name << " of step " << row.step);
    CHECK(row.outcome == Outcome::kUnresolved);
    CHECK(row.reason == PartedSteps::kReason);
    CHECK(row.count > 0);
  }
  // As the golden decided, all is judged.
  CHECK(observe_all(spec, parted, {skipped(1), gradient}).rows[1].is_wrong());
  CHECK(observe_all(spec, parted, {skipped(1), skipped(1, 2)}).rows[1].is_wrong());
  CHECK(observe_all(spec, parted, {skipped(1), later}).rows[1].outcome == Outcome::kMatch);
  // In another step, and without such a step, the skip is wrong.
  const auto other = golden_with_member(exact, exact, {{kPartedSkips, "2 7"}});
  CHECK(observe_all(spec, other, taken).rows[0].is_wrong());
  CHECK(observe_all(spec, golden_with_member(exact, exact), taken).rows[0].is_wrong());
  // Ranks decide together.
  const auto ended = [&](double of_rank_1) {
    return judge::judge(spec,
                        {finished(0, observe_all(spec, parted, {skipped(0), later}, 0)),
                         finished(1, observe_all(spec, parted, {skipped(of_rank_1), later}, 1))});
  };
  CHECK(ended(0).verdict == Verdict::kRefused);  // all is unresolved
  const CaseResult alone = ended(1);
  CHECK(alone.verdict == Verdict::kMismatch);
  CHECK_THAT(alone.divergence->pattern, Catch::Contains("2 different copies"));
}

TEST_CASE("a factor of a whole tensor counts until the first optimizer step", "[recorder]") {
  CaseSpec spec = spec_of(1, 1, Precision::kBFloat16);
  spec.steps = 2;
  const at::Tensor value = numbered({128});
  for (const int64_t step : {1, 2}) {
    const auto at_step = [step](const at::Tensor& tensor) {
      return seen("model.norm.output", tensor, Phase::kForward, step);
    };
    const auto golden = golden_with_member({at_step(value)}, {at_step(value * 1.0001)});
    const ResultRow row = observe_one(spec, golden, at_step(value * 1.004));
    CHECK(row.outcome == (step == 1 ? Outcome::kMismatch : Outcome::kMatch));
    CHECK(row.problem.empty() == (step == 2));
  }
}
