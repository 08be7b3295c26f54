// Gradients in which microbatches are lost or count twice, and counts that only stages have.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

namespace shardproof::sim::judge {
namespace {

const std::vector<at::Tensor> kParts = {numbered({5, 4}, 3), numbered({5, 4}, 4),
                                        numbered({5, 4}, 5)};
const at::Tensor kGolden = 0.2 * kParts[0] + 0.3 * kParts[1] + 0.5 * kParts[2];

std::vector<MicrobatchGradient> gradients_of(const std::vector<at::Tensor>& parts) {
  std::vector<MicrobatchGradient> gradients;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    gradients.push_back({number, {10 * number, 10 * number + 1}, parts[i].data_ptr<double>()});
  }
  return gradients;
}

std::optional<Proposal> proposed(const at::Tensor& actual, const at::Tensor& golden,
                                 const std::vector<MicrobatchGradient>& gradients) {
  const Mesh mesh({{"pp", 2}});
  const Piece piece = piece_of(actual, golden, kGrad);
  ResultRow row(Outcome::kMismatch);
  row.bad_count = golden.numel();
  Symptoms symptoms{mesh, Precision::kFloat64, {&row}, {&piece}};
  symptoms.microbatch_gradients = gradients;
  return propose_microbatches(Difference(symptoms));
}

std::optional<Proposal> proposed(const at::Tensor& actual) {
  return proposed(actual, kGolden, gradients_of(kParts));
}

// What is said of a gradient that is `factor` times the golden on the ranks that hold it.
Explanation said_of_factor(double factor, const Mesh& mesh, const std::set<int64_t>& holders,
                           int64_t chunks) {
  std::vector<ResultRow> rows;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const bool holds = holders.contains(rank);
    ResultRow row(holds ? Outcome::kMismatch : Outcome::kMatch);
    row.kind = ObservationKind::kGradient;
    row.rank = rank;
    row.local_shape = {holds ? 5 : 0, 4};
    row.count = holds ? 20 : 0;
    row.bad_count = row.count;
    row.factor = factor;
    row.golden_scale = 1;
    row.allowance = 1e-10;
    rows.push_back(row);
  }
  Symptoms symptoms{mesh, Precision::kFloat64, {}, {}};
  for (const ResultRow& row : rows) symptoms.rows.push_back(&row);
  symptoms.chunks = chunks;
  return explain_values(symptoms);
}

}  // namespace

TEST_CASE("where each rank has one backward the samples of ranks are named", "[microbatches]") {
  auto gradients = gradients_of(kParts);
  for (MicrobatchGradient& one : gradients) one.microbatch = 0;
  const auto lost = proposed(kGolden - 0.3 * kParts[1], kGolden, gradients);
  REQUIRE(lost);
  CHECK(lost->pattern == "it is the golden without the samples 10, 11, of 3 parts of the batch");
  CHECK(lost->likely ==
        "the gradients of the ranks that have the samples 10, 11 are missing from the sum");
  const auto twice = proposed(kGolden + 0.2 * kParts[0], kGolden, gradients);
  REQUIRE(twice);
  CHECK(twice->likely == "the gradient of a rank is added more than once");
  const auto alone = proposed(0.5 * kParts[2], kGolden, gradients);
  REQUIRE(alone);
  CHECK_THAT(alone->likely, Catch::Contains("that have the other samples are missing"));
}

TEST_CASE("microbatches that a gradient lacks are named", "[microbatches]") {
  const auto last = proposed(0.5 * kParts[2]);
  REQUIRE(last);
  CHECK(last->pattern == "it is the gradient of microbatch 2 alone, of 3");
  CHECK_THAT(last->likely, Catch::Contains("the last microbatch alone is trained"));
  const auto first = proposed(0.2 * kParts[0]);
  REQUIRE(first);
  CHECK(first->pattern == "it is the gradient of microbatch 0 alone, of 3");
  CHECK_THAT(first->likely, !Catch::Contains("last"));
  const auto lost = proposed(kGolden - 0.3 * kParts[1]);
  REQUIRE(lost);
  CHECK(lost->pattern == "it is the golden without microbatch 1, of 3");
  const auto twice = proposed(kGolden + 0.2 * kParts[0]);
  REQUIRE(twice);
  CHECK(twice->pattern == "it is the golden's sum in which microbatch 0 counts 2 times");
  auto gradients = gradients_of(kParts);
  gradients[1].microbatch = 0;  // of another rank
  const auto of_rank = proposed(kGolden - 0.3 * kParts[1], kGolden, gradients);
  REQUIRE(of_rank);
  CHECK(of_rank->pattern == "it is the golden without microbatch 0 with samples 10, 11, of 3");
}

TEST_CASE("a microbatch of which the golden has nothing is left aside", "[microbatches]") {
  std::vector<at::Tensor> parts = kParts;
  parts.insert(parts.begin() + 1, numbered({5, 4}, 6));
  const auto lost = proposed(kGolden - 0.3 * kParts[1], kGolden, gradients_of(parts));
  REQUIRE(lost);
  CHECK(lost->pattern == "it is the golden without microbatch 2, of 3");
  // What a sharded run has of it is not a whole number of times its gradient.
  CHECK_FALSE(proposed(kGolden - 0.3 * kParts[1] + 0.1 * parts[1], kGolden, gradients_of(parts)));
}

TEST_CASE("no microbatch is claimed where the data do not show one", "[microbatches]") {
  const auto gradients = gradients_of(kParts);
  for (const at::Tensor& other :
       {0.5 * kGolden, 0.2 * kParts[0] + 0.15 * kParts[1] + 0.5 * kParts[2], numbered({5, 4}, 9),
        kGolden - 0.3 * kParts[1] + 1e-3 * numbered({5, 4}, 9)}) {
    CHECK_FALSE(proposed(other));
  }
  // The golden is another sum, or two microbatches are equal: either could be the lost one.
  CHECK_FALSE(proposed(0.5 * kParts[2], kGolden + 0.1 * numbered({5, 4}, 8), gradients));
  const at::Tensor alike = 0.2 * kParts[0] + 0.3 * kParts[0] + 0.5 * kParts[2];
  CHECK_FALSE(proposed(0.5 * kParts[2], alike, gradients_of({kParts[0], kParts[0], kParts[2]})));
}

TEST_CASE("a factor that is a number of chunks, stages or holders is called so", "[microbatches]") {
  const Explanation both = said_of_factor(0.5, Mesh({{"pp", 2}}), {0, 1}, 2);
  CHECK_THAT(both.pattern, Catch::Contains("2 is the size of pp") &&
                               Catch::Contains("2 is the number of chunks of a rank"));
  CHECK_THAT(both.likely, Catch::Contains("; or divided by a count that each chunk of a rank"));
  const Explanation chunks = said_of_factor(3, Mesh({{"pp", 2}}), {0, 1}, 3);
  CHECK_THAT(chunks.pattern, Catch::Contains("3 is the number of chunks of a rank") &&
                                 !Catch::Contains("size of pp"));
  CHECK_THAT(said_of_factor(6, Mesh({{"pp", 2}}), {0, 1}, 3).pattern,
             Catch::Contains("6 is the number of stages"));
  const Explanation tied = said_of_factor(2, Mesh({{"pp", 4}}), {0, 3}, 1);
  CHECK_THAT(tied.pattern,
             Catch::Contains("2 is the number of stages' ranks that hold it (pp 0, 3)"));
  CHECK(tied.likely == "summed once too often over the stages that hold it");
  CHECK(said_of_factor(2, Mesh({{"pp", 4}}), {0}, 1).likely.find("stages") == std::string::npos);
  CHECK(said_of_factor(3, Mesh({{"pp", 2}}), {0, 1}, 1).likely.find("chunk") == std::string::npos);
}

// A loss on two ranks of pp, each with its own value for the golden's 8.
Explanation said_of_loss(double first, double second, double gradient_factor) {
  const Mesh mesh({{"pp", 2}});
  const at::Tensor golden = at::full({1}, 8, at::kDouble);
  Piece pieces[2] = {piece_of(at::full({1}, first, at::kDouble), golden, "loss"),
                     piece_of(at::full({1}, second, at::kDouble), golden, "loss")};
  std::vector<ResultRow> rows(2, ResultRow(Outcome::kMismatch));
  Symptoms symptoms{mesh, Precision::kFloat64, {&rows[0], &rows[1]}, {&pieces[0], &pieces[1]}};
  for (int64_t rank : {0, 1}) {
    ResultRow& row = rows[static_cast<size_t>(rank)];
    row.kind = ObservationKind::kLoss;
    row.name = "loss";
    row.rank = pieces[rank].rank = rank;
    row.count = row.bad_count = 1;
    row.golden_scale = row.golden_value = 8;
    row.actual_value = pieces[rank].actual[0];
    row.factor = row.actual_value / 8;
    row.allowance = 1e-10;
  }
  symptoms.chunks = 2;
  symptoms.gradient_factor = gradient_factor;
  return explain_values(symptoms);
}

TEST_CASE("what the gradients share with a loss says where it was wrong", "[microbatches]") {
  const std::string of_chunks = "divided by a count that each chunk of a rank adds to";
  // Right gradients: the sum over the stages, which comes behind the backward, may be a mean.
  CHECK_THAT(said_of_loss(4, 4, 0).likely,
             Catch::StartsWith("averaged over that axis where a sum belongs") &&
                 Catch::Contains("; or " + of_chunks) &&
                 Catch::EndsWith("; or the sum over pp is missing"));
  const Explanation before = said_of_loss(4, 4, 0.5);
  CHECK_THAT(before.likely, Catch::StartsWith(of_chunks) &&
                                Catch::Contains("divided by a count that is summed once too often "
                                                "over that axis") &&
                                !Catch::Contains("averaged over that axis"));
  CHECK_THAT(before.pattern,
             Catch::Contains("2 is the number of chunks of a rank; 2 is the size of pp"));
  // Another factor says nothing of the loss.
  CHECK_THAT(said_of_loss(4, 4, 0.25).likely, Catch::StartsWith("averaged over that axis"));
  // Addends that are not equal.
  CHECK(said_of_loss(3, 5, 0).likely == "the sum over pp is missing");
}

TEST_CASE("a sum that is missing over some ranks of an axis names them", "[microbatches]") {
  const Mesh mesh({{"pp", 4}});
  const at::Tensor golden = numbered({5, 4}, 3), addend = numbered({5, 4}, 4);
  Piece first = piece_of(addend, golden, kGrad), last = piece_of(golden - addend, golden, kGrad);
  last.rank = 3;
  ResultRow row(Outcome::kMismatch);
  row.kind = ObservationKind::kGradient;
  row.bad_count = row.count = 20;
  ResultRow other = row;
  other.rank = 3;
  const Explanation said =
      explain_values({mesh, Precision::kFloat64, {&row, &other}, {&first, &last}});
  CHECK_THAT(said.likely,
             Catch::Contains("the sum over the ranks of pp that hold it (pp 0, 3) is missing"));
}

}  // namespace shardproof::sim::judge
