// A case that samples rows is judged on these rows: what is wrong there is found at its place in
// the full tensor, what is wrong elsewhere is not, and the account says so.
#include "sim/case/record/sampled_rows.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>

#include "sim/case/recorder/golden_recorder.h"
#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

constexpr const char* kSampledWeight = "grad.weight";
constexpr int64_t kAllRows = 40, kColumns = 6, kSampled = 4;

CaseSpec sampling(int64_t dp, int64_t tp) {
  CaseSpec spec = spec_of(dp, tp);
  spec.sample_rows = kSampled;
  spec.seed = 5;
  return spec;
}

std::vector<int64_t> rows_of_weight() {
  GoldenFacts facts;
  facts.phase = Phase::kStep;
  facts.kind = kind_of_name(Phase::kStep, kSampledWeight);
  facts.name = kSampledWeight;
  return drawn_rows(facts, kAllRows, kSampled, 5);
}

int64_t other_row() {
  const std::vector<int64_t> rows = rows_of_weight();
  int64_t row = 0;
  while (std::find(rows.begin(), rows.end(), row) != rows.end()) ++row;
  return row;
}

JudgedWorld weight(int64_t dp, int64_t tp, const Layout& layout) {
  JudgedWorld world(sampling(dp, tp), {seen(kSampledWeight, numbered({kAllRows, kColumns}, 7))});
  world.cut_as(kSampledWeight, layout);
  return world;
}

}  // namespace

TEST_CASE("the golden holds the drawn rows alone, at the scale of the whole tensor", "[sampled]") {
  at::Tensor full = numbered({kAllRows, kColumns}, 7);
  full[other_row()][0] = -8;
  const JudgedWorld world(sampling(1, 1), {seen(kSampledWeight, full)});
  const GoldenTensor& golden = world.golden().tensors().at(0);
  CHECK(golden.rows == rows_of_weight());
  CHECK(golden.all_rows == kAllRows);
  CHECK(golden.value.sizes() == std::vector<int64_t>{kSampled, kColumns});
  CHECK(golden.scale == 8);
  for (int64_t i = 0; i < kSampled; ++i) {
    const int64_t row = golden.rows[static_cast<size_t>(i)];
    CHECK(golden.value.data<double>()[i * kColumns] == full[row][0].item<double>());
  }
}

TEST_CASE("a value that is not finite is a fault of the golden, in whatever row", "[sampled]") {
  at::Tensor full = numbered({kAllRows, kColumns}, 7);
  full[other_row()][0] = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(JudgedWorld(sampling(1, 1), {seen(kSampledWeight, full)}),
                    Catch::Contains("is not finite"));
}

// Ranks that pack samples into rows spread it to the drawn ones.
TEST_CASE("a member that is not finite in a row that is not drawn scatters without a limit",
          "[sampled]") {
  const at::Tensor full = numbered({kAllRows, kColumns}, 7);
  const auto recorded = [](const at::Tensor& value) {
    auto recorder = std::make_unique<GoldenRecorder>(true, -1, KeptRows{kSampled, 5});
    recorder->observe(seen(kSampledWeight, value));
    return recorder;
  };
  const auto golden = recorded(full);
  golden->add_member(*recorded(full + 0.5));
  REQUIRE(golden->scatter().size() == 1);
  CHECK(golden->scatter().begin()->second == 0.5);
  at::Tensor overflow = full.clone();
  overflow[other_row()][0] = std::numeric_limits<double>::infinity();
  golden->add_member(*recorded(overflow));
  CHECK(std::isinf(golden->scatter().begin()->second));
}

TEST_CASE("a match counts the elements that were not drawn as such", "[sampled]") {
  for (const Layout& layout : {Layout(), Layout({Cut::even(0, "tp")}), Layout({Cut::even(1, "tp")}),
                               Layout({Cut::padded(0, "tp", 42)})}) {
    const CaseResult result = weight(1, 2, layout).run();
    CAPTURE(layout.describe());
    CHECK(result.verdict == Verdict::kMatch);
    const Coverage& elements = result.account.elements;
    const int64_t copies = layout.replicated() ? 2 : 1;
    CHECK(elements.judged == copies * kSampled * kColumns);
    CHECK(elements.excused.at(Excuse::kNotDrawn) == copies * (kAllRows - kSampled) * kColumns);
    CHECK(elements.left_out() == 0);
  }
}

TEST_CASE("an error in a drawn row is found at its place in the full tensor", "[sampled]") {
  const int64_t row = rows_of_weight().at(2), length = kAllRows / 2;
  const auto plant = [&](int64_t rank, Observation& seen) {
    if (rank == row / length) seen.tensor[row % length][3] += 1e-3;
  };
  const Divergence wrong = found(weight(1, 2, Layout({Cut::even(0, "tp")})), plant);
  CHECK(wrong.tensor == kSampledWeight);
  CHECK(wrong.ranks == std::vector<int64_t>{row / length});
  CHECK(wrong.worst.worst_global_index == std::vector<int64_t>{row, 3});
  CHECK(wrong.worst.worst_local_index == std::vector<int64_t>{row % length, 3});
  CHECK(wrong.worst.global_shape == std::vector<int64_t>{kAllRows, kColumns});
  CHECK_THAT(wrong.pattern,
             Catch::Contains("dim 0 " + std::to_string(row)) || Catch::Contains("1 of"));
}

TEST_CASE("an error in another row is not claimed to be absent, and not found", "[sampled]") {
  const CaseResult result = weight(1, 1, Layout()).run([](int64_t, Observation& seen) {
    seen.tensor[other_row()][0] += 1;
  });
  CHECK(result.verdict == Verdict::kMatch);
  CHECK_THAT(describe_result(result, false),
             Catch::Contains("on 4 rows of each tensor: an error outside of them is not seen"));
}

TEST_CASE("copies must agree in every row", "[sampled]") {
  const Divergence wrong = found(weight(1, 2, Layout()), [](int64_t rank, Observation& seen) {
    if (rank == 1) seen.tensor[other_row()][0] += 1;
  });
  CHECK(wrong.kind == ResultKind::kReplicas);
}

TEST_CASE("a factor on all rows is explained by the drawn ones", "[sampled]") {
  const Divergence wrong = found(weight(1, 2, Layout({Cut::even(0, "tp")})),
                                 [](int64_t, Observation& seen) { seen.tensor.mul_(2); });
  CHECK_THAT(wrong.pattern, Catch::Contains("2.00 x golden"));
}

TEST_CASE("addends are summed for the drawn rows, and a wrong one is found", "[sampled]") {
  const auto hold = [](int64_t rank, Observation& seen) {
    const at::Tensor part = numbered({kAllRows, kColumns}, 30);
    seen.part = Part::kPartial;
    seen.partial_axes = {"dp"};
    seen.tensor = rank == 0 ? part : seen.tensor - part;
  };
  const JudgedWorld world = weight(2, 1, Layout());
  const CaseResult right = world.run(hold);
  CHECK(right.verdict == Verdict::kMatch);
  CHECK(right.account.elements.judged == 2 * kSampled * kColumns);
  for (const RankEnding& ending : world.endings(hold)) {
    const RankReport report = decode_rank_report(ending.bytes);
    REQUIRE(report.pieces.size() == 1);
    CHECK(report.pieces[0].actual.size() == kSampled * kColumns);
    CHECK(report.pieces[0].drawn == rows_of_weight());
  }
  const int64_t row = rows_of_weight().at(1);
  const Divergence wrong = found(world, [&](int64_t rank, Observation& seen) {
    hold(rank, seen);
    if (rank == 1) seen.tensor[row][4] += 1e-3;
  });
  CHECK(wrong.worst.worst_global_index == std::vector<int64_t>{row, 4});
  CHECK(wrong.worst.global_shape == std::vector<int64_t>{kAllRows, kColumns});
}
