// Experts, routers and their records: planted errors whose cause is named, and noise that has none.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

namespace shardproof::sim::judge {
namespace {

using Catch::Contains;

constexpr const char* kGateUp = "grad.model.layers.0.mlp.experts.gate_up_proj";
constexpr const char* kRouterGrad = "grad.model.layers.0.mlp.gate.weight";
constexpr const char* kIds = "model.layers.0.mlp.gate.ids.output";
constexpr const char* kWeights = "model.layers.0.mlp.gate.weights.output";
constexpr const char* kLogitsGrad = "model.layers.0.mlp.gate.weights.grad_input";

// [3, 8, 2] experts of 6, without an order that repeats.
at::Tensor ids() {
  const at::Tensor first = numbered({3, 8}, 11).mul(1e6).to(at::kLong).abs().remainder(5);
  const at::Tensor gap = numbered({3, 8}, 12).mul(1e6).to(at::kLong).abs().remainder(5 - first);
  return at::stack({first, first + 1 + gap}, -1);
}

// dp 4, ep 2, so that edp is 2: experts [6, 8, 5] over ep.
JudgedWorld experts_world(int64_t dp = 4, int64_t cp = 1) {
  CaseSpec spec = spec_of(dp, 1);
  spec.parallel.cp = cp;
  spec.parallel.ep = 2;
  JudgedWorld made(
      spec,
      {of_tokens(kIds, ids(), Phase::kForward),
       of_tokens("model.layers.0.mlp.gate.ids.margin", numbered({3, 8}, 3).abs(),
                 Phase::kRecompute),
       of_tokens(kWeights, numbered({3, 8, 2}, 13), Phase::kForward),
       of_tokens(kLogitsGrad, numbered({3, 8, 6}, 4), Phase::kBackward),
       of_tokens(std::string(kLogitsGrad) + ".balance", numbered({3, 8, 6}, 5) * 0.01,
                 Phase::kRecompute),
       of_tokens(std::string(kLogitsGrad) + ".z", numbered({3, 8, 6}, 6) * 0.02, Phase::kRecompute),
       of_tokens(std::string(kLogitsGrad) + ".scores", numbered({3, 8, 6}, 9).softmax(-1),
                 Phase::kRecompute),
       of_tokens(std::string(kLogitsGrad) + ".slopes", numbered({3, 8, 6}, 10), Phase::kRecompute),
       seen(kGateUp, numbered({6, 8, 5}, 7)), seen(kRouterGrad, numbered({6, 8}, 8))});
  made.cut_as(kGateUp, Layout({Cut::even(0, "ep")}));
  return made;
}

// Ranks have nothing that is beside the golden.
JudgedWorld::Plant with(const JudgedWorld::Plant& plant) {
  return [=](int64_t rank, Observation& observation) {
    if (observation.phase == Phase::kRecompute) {
      observation.tensor = at::Tensor();
    } else if (plant) {
      plant(rank, observation);
    }
  };
}

Divergence found_in(const JudgedWorld& judged, const std::string& name,
                    const std::function<at::Tensor(int64_t, at::Tensor)>& change) {
  return found(judged, with(in(name, change)));
}

at::Tensor golden_of(const JudgedWorld& judged, const std::string& name) {
  for (const GoldenTensor& tensor : judged.golden().tensors()) {
    if (tensor.name == name) return tensor_of(tensor.value).clone();
  }
  throw std::runtime_error(name);
}

TEST_CASE("A world of experts without an error matches, whatever is beside its golden",
          "[explanations]") {
  CHECK(experts_world().run(with({})).verdict == Verdict::kMatch);
}

TEST_CASE("Experts that have the values of others are named, and whose they are",
          "[explanations]") {
  const JudgedWorld judged = experts_world();
  const at::Tensor golden = golden_of(judged, kGateUp);
  const Divergence block = found_in(judged, kGateUp, [&](int64_t, const at::Tensor&) {
    return golden.narrow(0, 0, 3).clone();  // the part of rank 0 on every rank of ep
  });
  CHECK_THAT(block.pattern, Contains("expert 3 has the golden's values of expert 0") &&
                                Contains("on ranks 1, 3 (ep 1)"));
  CHECK_THAT(block.likely, Contains("the experts of rank 0 of ep stand in the place of others"));
  const Divergence swapped = found_in(judged, kGateUp, [&](int64_t rank, const at::Tensor&) {
    return golden.narrow(0, rank % 2 == 0 ? 3 : 0, 3).clone();
  });
  CHECK_THAT(swapped.likely, Contains("the ranks of ep were put together in another order"));
  const Divergence within = found_in(judged, kGateUp, [](int64_t rank, const at::Tensor& part) {
    return rank % 2 == 1 ? part.flip(0) : part;
  });
  CHECK_THAT(within.pattern, Contains("expert 3 has the golden's values of expert 5"));
  CHECK_THAT(within.likely, Contains("the experts of a rank of ep stand in another order"));
}

TEST_CASE("Experts with a factor each are named with it", "[explanations]") {
  const Divergence divergence =
      found_in(experts_world(), kGateUp, [](int64_t rank, at::Tensor part) {
        part[1] *= rank % 2 == 0 ? 2 : 4;
        return part;
      });
  CHECK_THAT(divergence.pattern,
             Contains("each expert is a multiple of the golden's, of its own: 1, 2, 1, 1, 4, 1"));
  CHECK_THAT(divergence.likely, Contains("the number of ranks whose tokens chose it"));
}

TEST_CASE("A mean over too few ranks is a cause of an expert's factor", "[explanations]") {
  const auto doubled = [](int64_t, const at::Tensor& part) { return part * 2; };
  CHECK_THAT(found_in(experts_world(), kGateUp, doubled).likely,
             Contains("averaged over the 2 ranks that hold the same experts") && Contains("; or "));
  CHECK_THAT(found_in(experts_world(), kRouterGrad, doubled).likely,
             !Contains("that hold the same experts"));
}

TEST_CASE("Gate and up that are exchanged, or stand in turn, are named", "[explanations]") {
  const JudgedWorld judged = experts_world();
  const Divergence exchanged = found_in(judged, kGateUp, [](int64_t, const at::Tensor& part) {
    return at::cat({part.narrow(1, 4, 4), part.narrow(1, 0, 4)}, 1);
  });
  CHECK(exchanged.likely == "gate and up are exchanged");
  const Divergence in_turn = found_in(judged, kGateUp, [](int64_t, const at::Tensor& part) {
    return at::stack({part.narrow(1, 0, 4), part.narrow(1, 4, 4)}, 2).flatten(1, 2);
  });
  CHECK(in_turn.likely == "gate and up stand in turn, where one belongs after the other");
}

TEST_CASE("Ranks that are peers along several axes are named by all of them", "[explanations]") {
  const JudgedWorld judged = experts_world(/*dp=*/2);
  const at::Tensor golden = golden_of(judged, kRouterGrad);
  const at::Tensor share = numbered({6, 8}, 21);
  CHECK_THAT(found_in(judged, kRouterGrad,
                      [&](int64_t rank, const at::Tensor&) {
                        return rank == 0 ? golden * 0.5 + share : golden * 0.5 - share;
                      })
                 .likely,
             Contains("the sum over dp or ep (the same ranks) is missing"));
}

TEST_CASE("Side losses that count another number of times in a router's gradient are named",
          "[explanations]") {
  const JudgedWorld judged = experts_world(/*dp=*/2, /*cp=*/3);
  const at::Tensor balance = golden_of(judged, std::string(kLogitsGrad) + ".balance");
  const at::Tensor z = golden_of(judged, std::string(kLogitsGrad) + ".z");
  const auto planted = [&](double of_balance, double of_z) {
    return found_in(judged, kLogitsGrad, [&](int64_t, const at::Tensor& gradient) {
      return gradient + of_balance * balance + of_z * z;
    });
  };
  CHECK_THAT(planted(-1, 0).pattern, Contains("it lacks the part of the balancing loss"));
  CHECK_THAT(planted(-1, 0).likely, Contains("is not added, or its gradient is cut off"));
  CHECK_THAT(planted(0, 1).pattern, Contains("it has the part of the z loss times 2.00"));
  CHECK_THAT(planted(0, 1).likely, Contains("the z loss is added twice") &&
                                       Contains("; or summed once too often over that axis"));
  CHECK_THAT(planted(1.0 / 3 - 1, 0).pattern, Contains("(1/3); 3 is the size of cp and of edp"));
  CHECK_THAT(planted(0.25, 0.5).pattern,
             Contains("balancing loss times 1.25, and it has the part of the z loss times 1.5"));
  CHECK_THAT(planted(0.25, 0).likely, Contains("or its coefficient is another"));
}

TEST_CASE("A side loss whose mean each rank takes over tokens of its own is named",
          "[explanations]") {
  const JudgedWorld judged = experts_world(/*dp=*/2, /*cp=*/3);
  for (const auto& [part, loss] : {std::pair{".z", "z loss"}, {".balance", "balancing loss"}}) {
    const at::Tensor of_loss = golden_of(judged, std::string(kLogitsGrad) + part);
    const Divergence own =
        found_in(judged, kLogitsGrad, [&](int64_t rank, const at::Tensor& gradient) {
          return gradient + (0.5 + static_cast<double>(rank)) * of_loss;
        });
    CHECK_THAT(own.pattern,
               Contains(fmt::format("{}, by rank or microbatch, 1.5 to 6.5 times", loss)));
    CHECK_THAT(own.likely, Contains(fmt::format("the mean of the {} is taken over each rank's or "
                                                "microbatch's own tokens",
                                                loss)) &&
                               !Contains("counts other routes"));
  }
}

TEST_CASE("A rank without a part of a side loss does not contradict the others", "[explanations]") {
  const Mesh mesh({{"dp", 2}});
  ResultRow first(Outcome::kMismatch), second(Outcome::kMismatch);
  const double none = std::numeric_limits<double>::quiet_NaN();
  first.evidence = {SideLossParts{0.5, 0.5}};
  second.evidence = {SideLossParts{none, 0.5}};
  second.rank = 1;
  const auto proposed = [&] {
    return propose_side_losses(Difference(
        {.mesh = mesh, .precision = Precision::kFloat64, .rows = {&first, &second}, .pieces = {}}));
  };
  REQUIRE(proposed());
  CHECK_THAT(proposed()->pattern, Contains("balancing loss times 0.5 (1/2); 2 is the size of dp") &&
                                      Contains("and it has the part of the z loss times 0.5"));
  second.evidence = {SideLossParts{none, 0.25}};
  CHECK_FALSE(proposed());
  second.evidence = {};
  CHECK_FALSE(proposed());
}

TEST_CASE("A factor of the weights of routes is no quotient of counts", "[explanations]") {
  const auto found_times = [](double factor) {
    return found_in(experts_world(), kWeights,
                    [=](int64_t, const at::Tensor& weights) { return factor * weights; });
  };
  for (const double factor : {10.0 / 17, 1.7, 0.4}) {
    CHECK_THAT(found_times(factor).likely, Contains("such as routed_scaling_factor, is left out") &&
                                               !Contains("a count of tokens"));
  }
  CHECK_THAT(found_times(4).likely, Contains("summed once too often over that axis"));
}

TEST_CASE("Wrong routes are named with the token, both choices and the golden's margin",
          "[explanations]") {
  const JudgedWorld judged = experts_world();
  const at::Tensor margins = golden_of(judged, "model.layers.0.mlp.gate.ids.margin");
  const Divergence one = found_in(judged, kIds, [](int64_t, at::Tensor chosen) {
    chosen[1][2][0] = 5 - chosen[1][2][0];
    chosen[2][7][0] = 5 - chosen[2][7][0];
    return chosen;
  });
  CHECK_THAT(one.pattern,
             Contains("2 of 24 tokens chose other experts: sample 1, position 2 chose") &&
                 Contains(fmt::format("the golden's least chosen score is {:.2g} above",
                                      margins[1][2].item<double>())));
  CHECK(one.likely.empty());
  const Divergence later = found_in(judged, kIds, [](int64_t, const at::Tensor& chosen) {
    return at::cat({chosen.narrow(1, 1, 7), chosen.narrow(1, 7, 1)}, 1);
  });
  CHECK_THAT(later.pattern, Contains("shifted by -1 along the positions") &&
                                Contains("tokens chose other experts: sample 0, position 0"));
  CHECK_THAT(later.likely, Contains("a record of routes is written or read 1 position off"));
  const Divergence turned = found_in(judged, kIds, [](int64_t, const at::Tensor& chosen) {
    return chosen.transpose(0, 1).flatten(0, 1).view_as(chosen);
  });
  CHECK_THAT(
      turned.likely,
      Contains("a record of routes that was written position by position is read sample by"));
}

TEST_CASE("Noise in the tensors of experts and routers has no cause", "[explanations]") {
  const JudgedWorld judged = experts_world();
  for (int64_t seed = 1; seed <= 24; ++seed) {
    INFO("seed " << seed);
    const auto noise = [seed](int64_t rank, const at::Tensor& part) {
      return part + 1e-3 * numbered(part.sizes().vec(), 100 * seed + rank % 2);
    };
    CHECK(found_in(judged, kGateUp, noise).likely.empty());
    const auto equal_noise = [seed](int64_t, const at::Tensor& part) {
      return part + 1e-3 * numbered(part.sizes().vec(), 100 * seed);
    };
    CHECK(found_in(judged, kLogitsGrad, equal_noise).likely.empty());
    // Each token may choose two others of the six by chance.
    const auto other_ids = [seed](int64_t, const at::Tensor& chosen) {
      const at::Tensor drawn =
          numbered({3, 8, 6}, 100 * seed).argsort(true, -1, false).narrow(-1, 0, 2);
      const at::Tensor moves = numbered({3, 8, 1}, 7 * seed).gt(seed % 3 == 0 ? 0.6 : -0.5);
      return at::where(moves, std::get<0>(drawn.sort(-1)), chosen);
    };
    CHECK(found_in(judged, kIds, other_ids).likely.empty());
  }
}

}  // namespace
}  // namespace shardproof::sim::judge
