// Sums of experts that add up other results, and other computations of a layer with experts: each
// is named where the values hold it, and nothing is where they do not.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

namespace shardproof::sim::judge::computations {
namespace {

using Catch::Contains;

constexpr const char* kSum = "model.layers.0.mlp.experts.output";
constexpr const char* kLogitsGrad = "model.layers.0.mlp.gate.weights.grad_input";
constexpr const char* kBias = "param.model.layers.0.mlp.gate.e_score_correction_bias";
constexpr double kRate = 0.25;

at::Tensor ids() {
  const at::Tensor first = numbered({2, 4}, 11).mul(1e6).to(at::kLong).abs().remainder(5);
  return at::stack({first, first + 1}, -1);
}
at::Tensor weights() { return numbered({2, 4, 2}, 13) + 2; }
at::Tensor each() { return numbered({2, 4, 6, 5}, 14); }  // six experts, five columns
at::Tensor biases() { return numbered({6, 5}, 15); }      // within `each`
at::Tensor routed() { return numbered({2, 4, 5}, 16); }   // beside the shared MLP
at::Tensor shared() { return numbered({2, 4, 5}, 17); }
at::Tensor gate() { return numbered({2, 4, 1}, 18); }
at::Tensor scores() { return numbered({2, 4, 6}, 19).softmax(-1); }
// What a loss with these slopes in the scores adds to the gradient of the logits.
at::Tensor by_scores(const at::Tensor& of) {
  return scores() * (of - (of * scores()).sum(-1, /*keepdim=*/true));
}
at::Tensor z_part() { return scores() * numbered({2, 4, 1}, 26); }
at::Tensor moves() { return at::tensor({kRate, -kRate, 0.0, kRate}, at::kDouble); }

// The results [2, 4, 2, 5] of each token's routes, where its experts are `chosen`.
at::Tensor results(const at::Tensor& chosen, const at::Tensor& all = each()) {
  return all.gather(2, chosen.unsqueeze(-1).expand({2, 4, 2, 5}));
}
at::Tensor sum_of(const at::Tensor& of_routes, const at::Tensor& by = weights()) {
  return (of_routes * by.unsqueeze(-1)).sum(2);
}
at::Tensor biases_of_routes() {
  return biases().index_select(0, ids().flatten()).view({2, 4, 2, 5});
}

// dp 4 with ep 2 and etp 2. Each rank holds copies of all.
JudgedWorld experts_world() {
  CaseSpec spec = spec_of(4, 1);
  spec.parallel.ep = spec.parallel.etp = 2;
  const at::Tensor dense = numbered({5}, 20), experts = numbered({6, 3, 4}, 21);
  return JudgedWorld(
      std::move(spec),
      {of_tokens("model.layers.0.mlp.gate.ids.output", ids(), Phase::kForward),
       of_tokens("model.layers.0.mlp.gate.weights.output", weights(), Phase::kForward),
       of_tokens(kSum, sum_of(results(ids())), Phase::kForward),
       of_tokens(std::string(kSum) + ".each", each(), Phase::kRecompute),
       seen(std::string(kSum) + ".biases", biases(), Phase::kRecompute),
       of_tokens("model.layers.1.mlp.experts.output", routed(), Phase::kForward),
       of_tokens("model.layers.1.mlp.shared_expert.down_proj.output", shared(), Phase::kForward),
       of_tokens("model.layers.1.mlp.shared_expert_gate.output", gate(), Phase::kForward),
       of_tokens("model.layers.1.mlp.shared_expert_sum.output",
                 routed() + shared() * gate().sigmoid(), Phase::kForward),
       of_tokens(kLogitsGrad, numbered({2, 4, 6}, 22), Phase::kBackward),
       of_tokens(std::string(kLogitsGrad) + ".scores", scores(), Phase::kRecompute),
       of_tokens(std::string(kLogitsGrad) + ".slopes", scores(), Phase::kRecompute),
       of_tokens(std::string(kLogitsGrad) + ".balance", by_scores(numbered({6}, 27)),
                 Phase::kRecompute),
       of_tokens(std::string(kLogitsGrad) + ".z", z_part(), Phase::kRecompute),
       seen("grad.w", dense), seen("grad.model.layers.0.mlp.experts.down_proj", experts),
       seen("grad_norm", (dense.square().sum() + experts.square().sum()).sqrt()),
       seen(kBias, numbered({4}, 23)),
       seen(std::string(kBias) + ".move", moves(), Phase::kRecompute)});
}

// What is found where the ranks hold `value` of this tensor, and the golden of all others.
Divergence found_of(const std::string& name, const at::Tensor& value) {
  return found(experts_world(), [&](int64_t, Observation& observation) {
    if (observation.phase == Phase::kRecompute) observation.tensor = at::Tensor();
    if (observation.name == name) observation.tensor = value;
  });
}

TEST_CASE("Routes without a result are counted, and the first is named", "[explanations]") {
  at::Tensor lost = results(ids());
  lost[1][2][0].zero_();
  lost[1][3][1].zero_();
  const Divergence one = found_of(kSum, sum_of(lost));
  CHECK_THAT(one.pattern,
             Contains("each of 2 wrong sums adds up other results of experts: 2 routes "
                      "without a result: sample 1, position 2 lacks expert"));
  CHECK_THAT(one.likely, Contains("a capacity or a buffer has too few rows"));
}

TEST_CASE("Results of other experts and of other tokens are told apart", "[explanations]") {
  const Divergence expert = found_of(kSum, sum_of(results((ids() + 3).remainder(6))));
  CHECK_THAT(expert.pattern, Contains("16 routes with the result of another expert"));
  CHECK_THAT(expert.likely, Contains("rows went to other experts"));
  const Divergence token = found_of(kSum, sum_of(results(ids(), each().flip(1))));
  CHECK_THAT(token.pattern,
             Contains("16 routes with a result for another token: sample 0, position 0 "
                      "has expert") &&
                 Contains("for sample 0, position 3"));
  CHECK_THAT(token.likely, Contains("cut, sorted or put back in another order"));
}

TEST_CASE("Results of several experts on one route are named", "[explanations]") {
  // Both of two ranks with three experts each run the routes of the first one's.
  const at::Tensor is_first = ids().lt(3).to(at::kDouble).unsqueeze(-1);
  const at::Tensor both = results(ids()) + results((ids() + 3).remainder(6));
  const Divergence one = found_of(kSum, sum_of(both * is_first));
  CHECK_THAT(one.pattern, Contains("routes with the results of several experts for their token") &&
                              Contains("routes without a result"));
  CHECK_THAT(one.likely, Contains("an expert's number among their own"));
}

TEST_CASE("Results of experts without weights are named", "[explanations]") {
  const Divergence plain = found_of(kSum, results(ids()).sum(2));
  CHECK_THAT(plain.pattern, Contains("8 tokens without the weights of their routes"));
  CHECK_THAT(plain.likely, Contains("added without weights"));
}

TEST_CASE("Biases of experts without weights, or too often, are named", "[explanations]") {
  const at::Tensor right = sum_of(results(ids())), weighted = sum_of(biases_of_routes());
  const Divergence plain = found_of(kSum, right - weighted + biases_of_routes().sum(2));
  CHECK_THAT(plain.likely, Contains("the bias of down is added behind the weights"));
  CHECK(found_of(kSum, right + 0.3 * weighted).likely.empty());
  const Divergence twice = found_of(kSum, right + weighted);
  CHECK_THAT(twice.pattern, Contains("count 2.00 times"));
  CHECK_THAT(twice.likely, Contains("adds its whole bias of down"));
  CHECK_THAT(found_of(kSum, right - weighted).likely, Contains("the bias of down is left out"));
}

TEST_CASE("Other forms of a sum with the shared MLP are named", "[explanations]") {
  const std::string sum = "model.layers.1.mlp.shared_expert_sum.output";
  const at::Tensor factor = gate().sigmoid();
  CHECK_THAT(found_of(sum, routed() + shared()).likely, Contains("is not applied"));
  CHECK_THAT(found_of(sum, routed() + shared() * gate()).likely, Contains("without its sigmoid"));
  CHECK_THAT(found_of(sum, (routed() + shared()) * factor).likely, Contains("routed experts too"));
  CHECK_THAT(found_of(sum, shared() * factor).likely, Contains("routed experts are not added"));
  const at::Tensor other = routed() + shared() * factor.square();
  CHECK_THAT(found_of(sum, other).likely, !Contains("gate"));
}

TEST_CASE("The squares of experts that a norm lacks are named", "[explanations]") {
  const at::Tensor dense = numbered({5}, 20).square().sum();
  const at::Tensor squares = numbered({6, 3, 4}, 21).square().sum({1, 2});
  const auto norm = [&](const at::Tensor& experts) {
    return found_of("grad_norm", (dense + experts).sqrt());
  };
  CHECK_THAT(
      norm(squares.narrow(0, 3, 3).sum()).pattern,
      Contains("of 2 equal parts of the experts the norm has the squares of number 1 alone"));
  CHECK_THAT(norm(squares.sum() / 2).likely, Contains("averaged over the ranks of ep"));
  CHECK_THAT(norm(squares.sum() * 2).likely, Contains("summed over ranks that hold the same"));
  CHECK_THAT(norm(squares.sum() * 0).likely, Contains("do not count in the norm"));
  CHECK(norm(squares.sum() / 3).likely.empty());  // not the size of an axis
  CHECK(norm(squares.sum() * 0.77).likely.empty());
}

TEST_CASE("Other shares of routes in a balancing loss are named", "[explanations]") {
  const at::Tensor right = numbered({2, 4, 6}, 22), shares = 0.1 * numbered({6}, 24);
  const Divergence one = found_of(kLogitsGrad, right + by_scores(shares));
  CHECK_THAT(one.pattern, Contains("a balancing loss that takes other shares of routes"));
  CHECK_THAT(one.likely, Contains("counts other routes"));
  // Padding counts in the mean of the z loss, too.
  const Divergence both = found_of(kLogitsGrad, right + by_scores(shares) - 0.2 * z_part());
  CHECK(both.likely == one.likely);
  // Shares of each token's own are those of no loss.
  const at::Tensor own = by_scores(0.1 * numbered({2, 4, 6}, 25));
  CHECK(found_of(kLogitsGrad, right + own).likely.empty());
}

TEST_CASE("A z loss of scores is named", "[explanations]") {
  const at::Tensor right = numbered({2, 4, 6}, 22);
  const at::Tensor slopes = scores().logsumexp(-1, /*keepdim=*/true) * scores().softmax(-1);
  const Divergence one = found_of(kLogitsGrad, right - z_part() + 0.3 * by_scores(slopes));
  CHECK_THAT(one.pattern, Contains("a z loss of the scores in place of that of the logits"));
  CHECK_THAT(one.likely, Contains("behind the softmax or sigmoid"));
  // Beside the z loss of the logits it is another loss.
  const Divergence more = found_of(kLogitsGrad, right + 0.3 * by_scores(slopes.square()));
  CHECK_THAT(more.pattern, !Contains("a z loss of the scores"));
}

TEST_CASE("Experts whose bias moved another way are named", "[explanations]") {
  at::Tensor other = numbered({4}, 23);
  other[1] += 2 * kRate;
  other[2] -= kRate;
  const Divergence moved = found_of(kBias, other);
  CHECK_THAT(moved.pattern, Contains("of experts 1, 2 moved another way"));
  CHECK_THAT(moved.likely, Contains("other routes are counted"));
  CHECK_THAT(found_of(kBias, numbered({4}, 23) - 2 * moves()).likely,
             Contains("the sign of its move"));
  CHECK_THAT(found_of(kBias, numbered({4}, 23) - moves()).likely,
             Contains("its update is left out"));
  CHECK(found_of(kBias, other + 0.3 * kRate).likely.empty());
}

TEST_CASE("Noise in the tensors of a layer with experts has no cause", "[explanations]") {
  for (int64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    const auto noise = [&](std::vector<int64_t> shape) {
      return 1e-3 * numbered(shape, 100 * seed);
    };
    CHECK(found_of(kSum, sum_of(results(ids())) + noise({2, 4, 5})).likely.empty());
    CHECK(found_of(kLogitsGrad, numbered({2, 4, 6}, 22) + noise({2, 4, 6})).likely.empty());
    CHECK(found_of("model.layers.1.mlp.shared_expert_sum.output",
                   routed() + shared() * gate().sigmoid() + noise({2, 4, 5}))
              .likely.empty());
  }
}

}  // namespace
}  // namespace shardproof::sim::judge::computations
