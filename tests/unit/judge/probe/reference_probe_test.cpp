#include "sim/judge/probe/reference_probe.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "sim/case/record/sampled_rows.h"
#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

constexpr const char* kWeight = "grad.w";

// The ranks of a reference of tp ranks, and the folder of their pieces.
class Reference {
 public:
  explicit Reference(int64_t tp, int64_t sample_rows = 0) : mesh_(Mesh::training({.tp = tp})) {
    spec_.sample_rows = sample_rows;
    std::string name = (std::filesystem::temp_directory_path() / "reference-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    spec_.reference.folder = name;
  }
  ~Reference() { std::filesystem::remove_all(spec_.reference.folder); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // The rank gives these; a rank that is not called gives nothing.
  Reference& gives(int64_t rank, const std::vector<Observation>& observations) {
    const FullSizes sizes{.parameters = {{"w", {8, 4}}}, .samples = 2, .seq_len = 3};
    ReferenceProbe probe(spec_, mesh_, rank, sizes);
    for (const Observation& one : observations) probe.observe(one);
    probe.finish();
    ranks_.push_back(RankPieces::read(spec_.reference.folder, rank));
    return *this;
  }
  GoldenRecord record() const {
    const std::string index = index_of_pieces(spec_.reference.folder, tensors_of(ranks_));
    const MemoryFile file;
    REQUIRE(::write(file.fd(), index.data(), index.size()) == std::ssize(index));
    return GoldenRecord::from_fd(file.fd());
  }
  const Mesh& mesh() const { return mesh_; }

 private:
  Mesh mesh_;
  CaseSpec spec_;
  std::vector<RankPieces> ranks_;
};

Layout rows_over_tp() { return Layout({Cut::even(0, "tp")}); }

Observation piece_of(const at::Tensor& full, const Layout& layout, const Mesh& mesh, int64_t rank) {
  Observation piece = seen(kWeight, cut(full, layout, mesh, rank));
  piece.layout = layout;
  return piece;
}

ResultRow judged(const GoldenRecord& golden, const Observation& one, int64_t tp, int64_t rank) {
  const CaseSpec spec = spec_of(1, tp);
  return observe_all(spec, golden, {one}, rank).rows.at(0);
}

std::string fault_of(const Reference& reference) {
  try {
    reference.record();
  } catch (const Error& error) {
    return error.fact();
  }
  return "none";
}

}  // namespace

TEST_CASE("a piece is compared with the pieces of another layout", "[reference]") {
  const at::Tensor full = numbered({8, 4});
  Reference reference(2);
  for (int64_t rank = 0; rank < 2; ++rank) {
    reference.gives(rank, {piece_of(full, rows_over_tp(), reference.mesh(), rank)});
  }
  const GoldenRecord golden = reference.record();
  REQUIRE(golden.tensors().size() == 1);
  CHECK(golden.tensors()[0].scale == full.abs().max().item<double>());
  CHECK(golden.tensors()[0].phase_scale == golden.tensors()[0].scale);
  const Mesh mesh = Mesh::training({.tp = 4});
  const Layout columns({Cut::even(1, "tp")});
  for (int64_t rank = 0; rank < 4; ++rank) {
    Observation piece = piece_of(full, columns, mesh, rank);
    const ResultRow right = judged(golden, piece, 4, rank);
    CHECK(right.outcome == Outcome::kMatch);
    CHECK(right.judged == 8);
    piece.tensor[5][0] += 1e-6;
    const ResultRow wrong = judged(golden, piece, 4, rank);
    CHECK(wrong.bad_count == 1);
    CHECK(wrong.worst_global_index == std::vector<int64_t>{5, rank});
  }
}

TEST_CASE("a reference's huge values count for its scale, unless a mask put them there",
          "[reference]") {
  const auto scale_with = [](double one, double other) {
    at::Tensor full = numbered({8, 4});
    full[0][0] = one;
    full[7][3] = other;
    Reference reference(2);
    for (int64_t rank = 0; rank < 2; ++rank) {
      reference.gives(rank, {piece_of(full, rows_over_tp(), reference.mesh(), rank)});
    }
    return reference.record().tensors().at(0).scale;
  };
  CHECK(scale_with(1e89, 1) == 1e89);
  CHECK(scale_with(1e89, -1e88) == 1e89);
  at::Tensor others = numbered({8, 4});
  others[0][0] = others[7][3] = 0;
  CHECK(scale_with(-1e38, -1e38) == others.abs().max().item<double>());
  // A copy is not a second element.
  others[0][0] = 1e40;
  Reference copies(2);
  copies.gives(0, {seen(kWeight, others)}).gives(1, {seen(kWeight, others)});
  CHECK(copies.record().tensors().at(0).scale == 1e40);
}

TEST_CASE("an element that no rank of the reference gave is never right", "[reference]") {
  Reference reference(2);
  // All values are 0, as in the parts of a file that nobody wrote.
  const at::Tensor full = at::zeros({8, 4}, at::kDouble);
  reference.gives(0, {piece_of(full, rows_over_tp(), reference.mesh(), 0)}).gives(1, {});
  const GoldenRecord golden = reference.record();
  const Mesh mesh = Mesh::training({.tp = 4});
  const auto row = [&](int64_t rank) {
    return judged(golden, piece_of(full, rows_over_tp(), mesh, rank), 4, rank);
  };
  CHECK(row(1).outcome == Outcome::kMatch);
  CHECK(row(2).is_wrong());
  CHECK(row(2).problem == "the reference's ranks did not give 8 of these 8 elements");
  Observation whole = seen(kWeight, full);
  CHECK(judged(golden, whole, 4, 0).problem ==
        "the reference's ranks did not give 16 of these 32 elements");
}

TEST_CASE("addends are added up, and each rank owes one", "[reference]") {
  const at::Tensor full = numbered({8, 4});
  const auto addend = [&](double share) {
    Observation one = seen(kWeight, full * share);
    one.part = Part::kPartial;
    one.partial_axes = {"tp"};
    return one;
  };
  Reference both(2);
  both.gives(0, {addend(0.75)}).gives(1, {addend(0.25)});
  const Mesh one_rank = Mesh::training({});
  CHECK(judged(both.record(), piece_of(full, {}, one_rank, 0), 1, 0).outcome == Outcome::kMatch);

  Reference lacking(2);
  lacking.gives(0, {addend(0.75)}).gives(1, {});
  CHECK(fault_of(lacking) == "its rank 1 gave no addend of grad.w of step 1 (step)");

  // Rank 1 owes the other half of the rows as well.
  Reference uneven(2);
  Observation half = addend(0.25);
  half.tensor = half.tensor.narrow(0, 0, 4).contiguous();
  half.layout = Layout({Cut::repeated(0, "tp", 2)});
  half.tensor = cut(full * 0.25, half.layout, uneven.mesh(), 1);
  uneven.gives(0, {addend(0.75)}).gives(1, {half});
  CHECK(judged(uneven.record(), piece_of(full, {}, one_rank, 0), 1, 0).problem ==
        "the reference's ranks did not give 16 of these 32 elements");
}

TEST_CASE("rows that are not sampled count for a tensor's scale", "[reference]") {
  at::Tensor full = numbered({8, 4});
  const GoldenFacts facts{
      .kind = seen(kWeight, full).kind, .phase = Phase::kStep, .step = 1, .name = kWeight};
  const std::vector<int64_t> drawn = drawn_rows(facts, 8, 2, CaseSpec().seed);
  int64_t other = 0;
  while (std::ranges::count(drawn, other) > 0) ++other;
  full[other][1] = -1e6;
  Reference reference(2, 2);
  for (const int64_t rank : {0, 1}) {
    reference.gives(rank, {piece_of(full, rows_over_tp(), reference.mesh(), rank)});
  }
  const GoldenRecord record = reference.record();
  const GoldenTensor* golden = record.find(Phase::kStep, 1, kWeight);
  REQUIRE(golden != nullptr);
  CHECK(golden->rows == drawn);
  CHECK(golden->scale == 1e6);
  CHECK(golden->phase_scale == 1e6);
}

TEST_CASE("a reference that contradicts itself is a fault of it", "[reference]") {
  const at::Tensor full = numbered({8, 4});
  at::Tensor other = full.clone();
  other[7][3] += 1;
  Reference copies(2);
  copies.gives(0, {seen(kWeight, full)}).gives(1, {seen(kWeight, other)});
  CHECK(fault_of(copies) == "its ranks 0 and 1 hold copies of grad.w of step 1 (step) that differ");

  other[7][3] = NAN;
  Reference not_finite(1);
  not_finite.gives(0, {seen(kWeight, other)});
  CHECK(fault_of(not_finite) == "a fault of the golden: grad.w of step 1 is not finite");

  Reference misfit(2);
  CHECK_THROWS_AS(misfit.gives(0, {seen(kWeight, full.narrow(0, 0, 3))}), Error);
}

TEST_CASE("tokens of several ranks make one activation, and padding none of it", "[reference]") {
  const at::Tensor full = numbered({2, 3, 4});  // [B, S, E]
  const auto rows = [&](int64_t sample, int64_t length) {
    Observation one = seen("x.output", at::zeros({1, 3, 4}, at::kDouble), Phase::kForward);
    one.tensor.narrow(1, 0, length).copy_(full.narrow(0, sample, 1).narrow(1, 0, length));
    one.token_map = at::arange(3, at::kLong).view({1, 3}) + 3 * sample;
    one.token_map.narrow(1, length, 3 - length).fill_(-1);
    return one;
  };
  Reference reference(2);
  reference.gives(0, {rows(0, 3)}).gives(1, {rows(1, 2)});
  const GoldenRecord golden = reference.record();
  CHECK(judged(golden, rows(0, 3), 1, 0).outcome == Outcome::kMatch);
  CHECK(judged(golden, rows(1, 2), 1, 0).outcome == Outcome::kMatch);
  CHECK(judged(golden, rows(1, 3), 1, 0).problem ==
        "the reference's ranks did not give 4 of these 12 elements");
}
