// Addends of any size: a right sum matches with every element counted; a wrong element and a
// missing addend are reported.
#include "sim/judge/diff/addends.h"

#include <catch2/catch.hpp>

#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

constexpr int64_t kMillion = 1000000;
constexpr const char* kWeight = "grad.weight";

JudgedWorld million() { return {spec_of(4, 1), {seen(kWeight, numbered({1000, 1000}, 7))}}; }

// Rank k of four holds a different part of the golden, the last rank the remainder.
void hold_addend(int64_t rank, Observation& seen) {
  const auto part = [&](int64_t of) { return numbered(seen.tensor.sizes().vec(), 30 + of); };
  seen.part = Part::kPartial;
  seen.partial_axes = {"dp"};
  seen.tensor = rank < 3 ? part(rank) : seen.tensor - part(0) - part(1) - part(2);
}

}  // namespace

TEST_CASE("of a million addends every one counts, and a wrong one is named", "[addends]") {
  const CaseResult right = million().run(hold_addend);
  CHECK(right.verdict == Verdict::kMatch);
  CHECK(right.elements_compared == 4 * kMillion);
  CHECK(right.account.elements.demanded == 4 * kMillion);
  const Divergence wrong = found(million(), [](int64_t rank, Observation& seen) {
    hold_addend(rank, seen);
    if (rank == 2) seen.tensor[123][456] += 1e-3;
  });
  CHECK(wrong.kind == ResultKind::kValues);
  CHECK(wrong.worst.worst_global_index == std::vector<int64_t>{123, 456});
  CHECK(wrong.worst.bad_count == 1);
  CHECK(wrong.worst.count == kMillion);
  CHECK(wrong.worst.actual_value - wrong.worst.golden_value == Approx(1e-3));
}

TEST_CASE("a sum that is wrong by roundings says so, as any other value", "[addends]") {
  const at::Tensor full = numbered({100, 100}, 7);
  const JudgedWorld narrow(spec_of(4, 1, Precision::kFloat32), {seen(kWeight, full)});
  const Divergence wrong = found(narrow, [](int64_t rank, Observation& seen) {
    hold_addend(rank, seen);
    if (rank == 2) seen.tensor[12][45] += 2e-6;
  });
  CHECK(wrong.worst.bad_count == 1);
  CHECK(wrong.worst.rounding_only);
}

TEST_CASE("a missing addend is named with its rank", "[addends]") {
  const auto lacks = [](const JudgedWorld::Plant& change) {
    return found(million(), [=](int64_t rank, Observation& seen) {
      hold_addend(rank, seen);
      if (rank == 2) change(rank, seen);
    });
  };
  const Divergence silent = lacks([](int64_t, Observation& seen) { seen.tensor = at::Tensor(); });
  CHECK(silent.kind == ResultKind::kMissing);
  CHECK(silent.tensor == kWeight);
  CHECK(silent.ranks == std::vector<int64_t>{2});
  CHECK_THAT(silent.pattern, Catch::Contains("an addend is missing: rank 2 holds none of it"));
  const Divergence half = lacks([](int64_t, Observation& seen) {
    seen.layout = Layout({Cut::even(0, "dp")});
    seen.tensor = seen.tensor.narrow(0, 500, 250).contiguous();
  });
  CHECK(half.kind == ResultKind::kMissing);
  CHECK(half.ranks == std::vector<int64_t>{2});
  const Divergence whole = lacks([](int64_t, Observation& seen) { seen.part = Part::kFull; });
  CHECK(whole.tensor == kWeight);
}

TEST_CASE("addends of several microbatches count together, and of each tokens once", "[addends]") {
  const at::Tensor full = numbered({4, 3, 2});
  const CaseSpec spec = spec_of(1, 2);
  const auto golden = golden_from({seen("x.grad_input", full, Phase::kBackward)});
  const auto judged = [&](int64_t microbatches_of_rank_1) {
    std::vector<RankEnding> endings;
    for (int64_t rank = 0; rank < 2; ++rank) {
      RankRecorder recorder(spec, spec.parallel.mesh(), rank, &golden, {});
      for (int64_t i = 0; i < (rank == 0 ? 2 : microbatches_of_rank_1); ++i) {
        Observation one =
            seen("x.grad_input", full.narrow(0, 2 * i, 2) * (rank + 1) / 3, Phase::kBackward);
        one.microbatch = i;
        one.token_map = at::arange(6 * i, 6 * i + 6, at::kLong).view({2, 3});
        one.part = Part::kPartial;
        one.partial_axes = {"tp"};
        recorder.observe(one);
      }
      endings.push_back(finished(rank, recorder.finish()));
    }
    return judge::judge(spec, endings);
  };
  CHECK(judged(2).verdict == Verdict::kMatch);
  CHECK(judged(2).elements_compared == 2 * full.numel());
  const CaseResult one_too_few = judged(1);
  CHECK(one_too_few.verdict == Verdict::kMismatch);
  CHECK(one_too_few.kind == ResultKind::kMissing);
}

TEST_CASE("ranks that share a part of a cut dim are peers of each other alone", "[addends]") {
  const at::Tensor full = numbered({3, 2, 2});  // two kv heads on four ranks
  const JudgedWorld judged(spec_of(1, 4), {seen("k.grad_input", full, Phase::kBackward)});
  const auto hold = [](int64_t rank, Observation& seen) {
    const at::Tensor head = seen.tensor.narrow(1, rank / 2, 1);
    seen.part = Part::kPartial;
    seen.partial_axes = {"tp"};
    seen.layout = Layout({Cut::repeated(1, "tp", 2)});
    seen.tensor = head * (rank % 2 == 0 ? 0.25 : 0.75);
  };
  CHECK(judged.run(hold).verdict == Verdict::kMatch);
  const Divergence silent = found(judged, [&](int64_t rank, Observation& seen) {
    hold(rank, seen);
    if (rank == 3) seen.tensor = at::Tensor();
  });
  CHECK(silent.kind == ResultKind::kMissing);
  CHECK(silent.ranks == std::vector<int64_t>{3});
}

TEST_CASE("an addend that finds no room is not judged, and says how many bytes it lacked",
          "[addends]") {
  const CaseSpec spec = spec_of(65536, 1);  // leaves 16 KiB for each rank
  const auto golden =
      golden_from({seen("grad.a", numbered({1000})), seen("grad.b", numbered({1000}, 2))});
  RankRecorder recorder(spec, spec.parallel.mesh(), 3, &golden, {});
  for (const GoldenTensor& tensor : golden.tensors()) {
    Observation one = seen(tensor.name, tensor_of(tensor.value));
    one.part = Part::kPartial;
    one.partial_axes = {"dp"};
    recorder.observe(one);
  }
  const RankReport report = recorder.finish();
  CHECK(report.rows[0].outcome == Outcome::kAddend);
  CHECK(report.rows[1].outcome == Outcome::kNotJudged);
  CHECK_THAT(report.rows[1].reason,
             Catch::Contains("16000 more bytes on rank 3, where 384 of the 16384"));
}

TEST_CASE("addends that no rule decides stay unresolved; those that nothing compared do not",
          "[addends]") {
  for (const Outcome outcome : {Outcome::kUnresolved, Outcome::kNotJudged, Outcome::kMatch}) {
    std::vector<RankReport> reports(4);
    for (int64_t rank = 0; rank < 4; ++rank) {
      ResultRow row(rank == 0 ? outcome : Outcome::kAddend);
      row.name = kWeight;
      row.rank = reports[static_cast<size_t>(rank)].rank = rank;
      row.order = 0;
      row.partial = true;
      row.partial_axes = {"dp"};
      reports[static_cast<size_t>(rank)].rows.push_back(row);
    }
    CHECK(settle_addends(StepMeshes(spec_of(4, 1)), reports).empty());
    for (const RankReport& report : reports) {
      CHECK(report.rows[0].outcome ==
            (outcome == Outcome::kUnresolved ? Outcome::kUnresolved : Outcome::kNotJudged));
    }
  }
}
