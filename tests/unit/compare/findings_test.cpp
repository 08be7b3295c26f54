// Planted errors: the first tensor, the ranks, the pattern.
#include <catch2/catch.hpp>

#include <cmath>

#include "tests/unit/compare/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using Ranks = std::vector<int64_t>;

namespace {

constexpr const char* kGrad = "grad.w";

// dp 2, tp 3: a weight [12, 10] cut over tp, beside tensors before and after it.
JudgedWorld world(const std::string& precision = "float64") {
  JudgedWorld made(spec_of(2, 3, precision),
                   {seen("x.output", numbered({4, 6}), Phase::kForward),
                    seen("y.grad_input", numbered({4, 6}, 2), Phase::kBackward),
                    seen("x.grad_input", numbered({4, 6}, 3), Phase::kBackward),
                    seen(kGrad, numbered({12, 10}, 4)), seen("grad.b", numbered({12}, 5)),
                    seen("grad_norm", at::scalar_tensor(4.0, at::kDouble)),
                    seen("param.w", numbered({12, 10}, 6))});
  made.cut_as(kGrad, Layout({Cut::even(0, "tp")})).cut_as("param.w", Layout({Cut::even(0, "tp")}));
  return made;
}

// Changes what every rank holds of one tensor.
JudgedWorld::Plant in(const std::string& name, const std::function<at::Tensor(int64_t, at::Tensor)>& f) {
  return [=](int64_t rank, Observation& seen) {
    if (seen.name == name) seen.tensor = f(rank, seen.tensor.clone()).contiguous();
  };
}

Divergence found(const JudgedWorld& judged, const JudgedWorld::Plant& plant) {
  const CaseResult result = judged.run(plant);
  CHECK(result.verdict == "mismatch");
  REQUIRE(result.divergence);
  return *result.divergence;
}

// The full tensor changed, then cut: what a wrong order or offset looks like.
JudgedWorld::Plant full(const JudgedWorld& judged, const std::string& name, const Layout& layout,
                        const std::function<at::Tensor(const at::Tensor&)>& f) {
  for (const GoldenTensor& tensor : judged.golden().tensors()) {
    if (tensor.name != name) continue;
    const at::Tensor changed = f(tensor.value).contiguous();
    const Mesh mesh = judged.mesh();
    return in(name, [=](int64_t rank, at::Tensor) { return cut(changed, layout, mesh, rank); });
  }
  return {};
}

const Layout kRows({Cut::even(0, "tp")});

}  // namespace

TEST_CASE("a clean world matches", "[findings]") {
  CHECK(world().run().verdict == "match");
  CHECK(world("float32").run().verdict == "match");
}

TEST_CASE("the first divergence follows the golden: forward, backward, step", "[findings]") {
  const auto both = [](const std::string& a, const std::string& b) {
    return [=](int64_t, Observation& seen) {
      if (seen.name == a || seen.name == b) seen.tensor = seen.tensor + 0.125;
    };
  };
  CHECK(found(world(), both("grad.b", "x.output")).tensor == "x.output");
  CHECK(found(world(), both("grad.b", "x.grad_input")).tensor == "x.grad_input");
  CHECK(found(world(), both("x.grad_input", "y.grad_input")).tensor == "y.grad_input");
  CHECK(found(world(), both("param.w", kGrad)).tensor == kGrad);
}

TEST_CASE("an earlier step comes before a later step's forward", "[findings]") {
  const JudgedWorld two(spec_of(1, 2), {seen("x.output", numbered({3}), Phase::kForward, 1),
                                        seen("param.w", numbered({3}, 2), Phase::kStep, 1),
                                        seen("x.output", numbered({3}, 3), Phase::kForward, 2)});
  const Divergence first = found(two, [](int64_t, Observation& seen) {
    if (seen.step == 2 || seen.phase == Phase::kStep) seen.tensor = seen.tensor + 0.5;
  });
  CHECK(first.tensor == "param.w");
  CHECK(first.step == 1);
}

TEST_CASE("a factor is named after the axis whose size it is", "[findings]") {
  const auto times = [](double factor) {
    return in(kGrad, [=](int64_t, const at::Tensor& t) { return t * factor; });
  };
  const Divergence twice = found(world(), times(2));
  CHECK(twice.tensor == kGrad);
  CHECK(twice.ranks == Ranks{0, 1, 2, 3, 4, 5});
  CHECK(twice.pattern == "every element is 2.00 x golden on all ranks; 2 is the size of dp");
  CHECK_THAT(twice.likely, Catch::Contains("summed once too often"));
  CHECK_THAT(found(world(), times(1.0 / 3)).pattern,
             Catch::Contains("(1/3)") && Catch::Contains("3 is the size of tp"));
  CHECK_THAT(found(world(), times(1.0 / 3)).likely, Catch::Contains("averaged"));
  CHECK_THAT(found(world(), times(6)).pattern, Catch::Contains("6 is the size of dp x tp"));
  CHECK_THAT(found(world(), times(-1)).likely, Catch::Contains("sign"));
  CHECK_THAT(found(world(), times(0.25)).pattern, Catch::Contains("clipping factor"));
  CHECK_THAT(found(world(), times(4)).likely, Catch::Contains("not clipped"));
  CHECK_THAT(found(world(), times(1.37)).likely, Catch::Contains("no size of the mesh"));
}

TEST_CASE("in float32 a factor is still seen through the rounding", "[findings]") {
  const Divergence twice =
      found(world("float32"), in(kGrad, [](int64_t, const at::Tensor& t) {
              return (t * 2).to(at::kFloat);
            }));
  CHECK_THAT(twice.pattern, Catch::Contains("2 is the size of dp"));
  CHECK(twice.worst.rounding_only);
}

TEST_CASE("a wrong norm is a factor, or the root of one", "[findings]") {
  const auto norm = [](double factor) {
    return in("grad_norm", [=](int64_t, const at::Tensor& t) { return t * factor; });
  };
  CHECK_THAT(found(world(), norm(std::sqrt(3.0))).pattern,
             Catch::Contains("square root of 3, the size of tp"));
  CHECK_THAT(found(world(), norm(3)).pattern, Catch::Contains("3 is the size of tp"));
  CHECK_THAT(found(world(), norm(1.1)).pattern, !Catch::Contains("every element"));
}

TEST_CASE("one rank only, and the ranks of one coordinate, are told apart", "[findings]") {
  const auto on = [](const Ranks& bad) {
    return in("grad.b", [=](int64_t rank, at::Tensor t) {
      if (std::find(bad.begin(), bad.end(), rank) != bad.end()) t[2] += 0.5;
      return t;
    });
  };
  const Divergence one = found(world(), on({4}));
  CHECK(one.ranks == Ranks{4});
  CHECK_THAT(one.pattern, Catch::Contains("on rank 4 only"));
  CHECK_THAT(found(world(), on({1, 4})).pattern, Catch::Contains("on ranks 1, 4 (tp 1)"));
  CHECK_THAT(found(world(), on({3, 4, 5})).pattern, Catch::Contains("on ranks 3, 4, 5 (dp 1)"));
}

TEST_CASE("a missing sum is found from the pieces of the ranks", "[findings]") {
  const Divergence missing = found(world(), in("grad.b", [](int64_t rank, const at::Tensor& t) {
    const at::Tensor part = numbered({12}, 77);
    return rank < 3 ? part : t - part;  // dp 0 and dp 1
  }));
  CHECK_THAT(missing.pattern, Catch::Contains("sum of the ranks' values over dp is the golden"));
  CHECK(missing.likely == "the sum over dp is missing");
  const Divergence mean = found(world(), in("grad.b", [](int64_t rank, const at::Tensor& t) {
    const at::Tensor part = numbered({12}, 77);
    return rank < 3 ? part : 2 * t - part;
  }));
  CHECK(mean.likely == "the mean over dp is missing");
}

TEST_CASE("zeros, NaN and infinities say so", "[findings]") {
  CHECK_THAT(found(world(), in(kGrad, [](int64_t, const at::Tensor& t) { return t * 0; })).pattern,
             Catch::Contains("every element is 0 on all ranks"));
  CHECK_THAT(found(world(), in(kGrad, [](int64_t rank, at::Tensor t) {
               if (rank == 5) t[0][3] = NAN;
               return t;
             })).pattern,
             Catch::Contains("1 NaN and 0 infinite of 40 elements on rank 5 only"));
}

TEST_CASE("a shift is seen across the shards", "[findings]") {
  const JudgedWorld judged = world();
  const auto shift = [&](int64_t by, int64_t dim) {
    return full(judged, kGrad, kRows, [=](const at::Tensor& t) {
      at::Tensor out = numbered({12, 10}, 50);  // what fell in at the border is anything
      const int64_t size = t.size(dim) - by;
      out.narrow(dim, by, size).copy_(t.narrow(dim, 0, size));
      return out;
    });
  };
  CHECK_THAT(found(judged, shift(1, 1)).pattern, Catch::Contains("shifted by 1 along dim 1"));
  CHECK_THAT(found(judged, shift(2, 0)).pattern, Catch::Contains("shifted by 2 along dim 0"));
}

TEST_CASE("permuted chunks name their order", "[findings]") {
  const JudgedWorld judged = world();
  const auto reorder = [&](const std::vector<int64_t>& order) {
    return full(judged, kGrad, kRows, [=](const at::Tensor& t) {
      std::vector<at::Tensor> chunks = t.chunk(static_cast<int64_t>(order.size()), 0);
      std::vector<at::Tensor> out;
      for (const int64_t i : order) out.push_back(chunks[i]);
      return at::cat(out, 0);
    });
  };
  const Divergence shards = found(judged, reorder({1, 2, 0}));
  CHECK_THAT(shards.pattern, Catch::Contains("the 3 chunks along dim 0") && Catch::Contains("1 2 0"));
  CHECK_THAT(shards.likely, Catch::Contains("shards of tp"));
  CHECK_THAT(found(judged, reorder({0, 1, 3, 2, 4, 5})).pattern, Catch::Contains("0 1 3 2 4 5"));
}

TEST_CASE("a transposed square is recognised", "[findings]") {
  JudgedWorld judged(spec_of(1, 2), {seen("grad.square", numbered({6, 6}))});
  judged.cut_as("grad.square", kRows);
  CHECK_THAT(found(judged, full(judged, "grad.square", kRows, [](const at::Tensor& t) {
               return t.t();
             })).pattern,
             Catch::Contains("dims 0 and 1 are transposed"));
}

TEST_CASE("wrong in a part only: which indices, and what stands there", "[findings]") {
  CHECK_THAT(found(world(), in("x.output", [](int64_t, at::Tensor t) {
               t.narrow(1, 4, 2).zero_();
               return t;
             })).pattern,
             Catch::Contains("wrong only at dim 1 4..5, which are all zero"));
  CHECK_THAT(found(world(), in("x.output", [](int64_t, at::Tensor t) {
               t[2].mul_(3);
               return t;
             })).pattern,
             Catch::Contains("wrong only at dim 0 2"));
}

TEST_CASE("padding that is not zero is called padding", "[findings]") {
  at::Tensor logprobs = numbered({3, 5});
  logprobs.select(1, 0).zero_();
  logprobs[1].narrow(0, 3, 2).zero_();
  const JudgedWorld judged(spec_of(1, 2), {seen("logprobs", logprobs, Phase::kForward)});
  const Divergence padding = found(judged, in("logprobs", [](int64_t, at::Tensor t) {
    t[1][3] = -1e-14;
    return t;
  }));
  CHECK_THAT(padding.pattern, Catch::Contains("dim 0 1, dim 1 3") &&
                                  Catch::Contains("exactly zero in the golden"));
  CHECK_THAT(padding.likely, Catch::Contains("padding or dropped positions are counted"));
}

TEST_CASE("a parameter that was not updated, a swapped one, a rounded one", "[findings]") {
  const at::Tensor before = numbered({6}, 8), after = numbered({6}, 9), other = numbered({6}, 10);
  const JudgedWorld judged(spec_of(1, 2),
                           {seen("param.a", before, Phase::kStep, 1),
                            seen("param.a", after, Phase::kStep, 2),
                            seen("param.b", other, Phase::kStep, 2)});
  const auto second = [](const at::Tensor& value) {
    return [=](int64_t, Observation& seen) {
      if (seen.step == 2 && seen.name == "param.a") seen.tensor = value.clone();
    };
  };
  CHECK_THAT(found(judged, second(before)).pattern,
             Catch::Contains("equals the golden of step 1: stale"));
  CHECK_THAT(found(judged, second(other)).pattern, Catch::Contains("equals the golden's param.b"));
  CHECK_THAT(found(judged, second(after.to(at::kFloat).to(at::kDouble))).pattern,
             Catch::Contains("every value is exactly a float32"));
  CHECK_THAT(found(judged, second(after.to(at::kBFloat16).to(at::kDouble))).pattern,
             Catch::Contains("every value is exactly a bfloat16"));
}

TEST_CASE("replicas that differ within the allowance are a mismatch of replicas", "[findings]") {
  const CaseResult result = world().run(in("grad.b", [](int64_t rank, at::Tensor t) {
    if (rank == 2) t[0] = std::nextafter(t[0].item<double>(), 10.0);
    return t;
  }));
  CHECK(result.verdict == "mismatch");
  CHECK(result.kind == "replicas");
  CHECK(result.divergence->tensor == "grad.b");
  CHECK_THAT(result.divergence->pattern, Catch::Contains("2 different copies") &&
                                             Catch::Contains("rank 2 only"));
}

TEST_CASE("shards of one tensor are no replicas of each other", "[findings]") {
  // Ranks 0 and 3 hold the same rows of grad.w; a difference there is one, elsewhere it is none.
  const CaseResult result = world().run(in(kGrad, [](int64_t rank, at::Tensor t) {
    if (rank == 3) t[0][0] = std::nextafter(t[0][0].item<double>(), 10.0);
    return t;
  }));
  CHECK(result.kind == "replicas");
  CHECK(result.divergence->ranks == Ranks{0, 3});
}

TEST_CASE("ranks that hold different tokens need not agree, those with the same must", "[findings]") {
  const at::Tensor full = numbered({4, 3, 2});
  const CaseSpec spec = spec_of(2, 2);
  const auto golden = golden_from({seen("x.output", full, Phase::kForward)});
  const auto ended = [&](double noise_on_rank_1) {
    std::vector<RankEnding> endings;
    for (int64_t rank = 0; rank < 4; ++rank) {
      const int64_t dp = rank / 2;
      Observation one = seen("x.output", full.narrow(0, 2 * dp, 2).clone(), Phase::kForward);
      one.token_map = at::arange(6 * dp, 6 * dp + 6, at::kLong).view({2, 3});
      if (rank == 1) one.tensor += noise_on_rank_1;
      RankRecorder recorder(spec, spec.parallel.mesh(), rank, &golden, {});
      recorder.observe(one);
      RankEnding ending;
      ending.rank = rank;
      ending.bytes = encode(recorder.finish());
      endings.push_back(ending);
    }
    return judge(spec, endings);
  };
  CHECK(ended(0).verdict == "match");
  CHECK(ended(1e-14).kind == "replicas");
}

TEST_CASE("dummy microbatches hold whatever they like", "[findings]") {
  const CaseSpec spec = spec_of(2, 1);
  const auto golden = golden_from({seen("x.output", numbered({1, 2, 2}), Phase::kForward)});
  std::vector<RankEnding> endings;
  for (int64_t rank = 0; rank < 2; ++rank) {
    RankRecorder recorder(spec, spec.parallel.mesh(), rank, &golden, {});
    Observation dummy = seen("x.output", numbered({1, 2, 2}, 90 + rank), Phase::kForward);
    dummy.token_map = at::full({1, 2}, -1, at::kLong);
    recorder.observe(dummy);
    RankEnding ending;
    ending.rank = rank;
    ending.bytes = encode(recorder.finish());
    endings.push_back(ending);
  }
  CHECK(judge(spec, endings).verdict == "match");
}

TEST_CASE("a golden tensor that no rank observed is missing, at its own place", "[findings]") {
  const CaseResult result = world().run([](int64_t, Observation& seen) {
    if (seen.name == kGrad) seen.tensor = at::Tensor();
    if (seen.name == "param.w") seen.tensor = seen.tensor + 1;
  });
  CHECK(result.kind == "missing");
  CHECK(result.divergence->tensor == kGrad);
  CHECK(world().run([](int64_t rank, Observation& seen) {
          if (seen.name == "grad.b" && rank > 0) seen.tensor = at::Tensor();
        }).verdict == "match");  // one rank holds it whole
}

TEST_CASE("every element of a gradient must be held by some rank", "[findings]") {
  const CaseResult result = world().run([](int64_t rank, Observation& seen) {
    if (seen.name == kGrad && rank % 3 == 2) seen.tensor = at::Tensor();  // tp 2 on every dp rank
  });
  CHECK(result.kind == "missing");
  CHECK(result.divergence->tensor == kGrad);
  CHECK_THAT(result.divergence->pattern, Catch::Contains("do not hold every element"));
}

TEST_CASE("every scored logprob must be held by some rank, padding need not", "[findings]") {
  at::Tensor logprobs = numbered({2, 4});
  logprobs.select(1, 0).zero_();
  logprobs[1][3] = 0;
  const CaseSpec spec = spec_of(2, 1);
  const auto golden = golden_from({seen("logprobs", logprobs, Phase::kForward)});
  const auto verdict = [&](const std::vector<std::vector<int64_t>>& tokens_of_rank) {
    std::vector<RankEnding> endings;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const at::Tensor map = at::tensor(tokens_of_rank[rank], at::kLong).view({1, -1});
      Observation one = seen("logprobs", at::zeros({1, map.size(1)}, at::kDouble), Phase::kForward);
      for (int64_t i = 0; i < map.size(1); ++i) {
        const int64_t token = map[0][i].item<int64_t>();
        if (token >= 0) one.tensor[0][i] = logprobs.view(-1)[token];
      }
      one.token_map = map;
      RankRecorder recorder(spec, spec.parallel.mesh(), rank, &golden, {});
      recorder.observe(one);
      RankEnding ending;
      ending.rank = rank;
      ending.bytes = encode(recorder.finish());
      endings.push_back(ending);
    }
    return judge(spec, endings).kind;
  };
  CHECK(verdict({{0, 1, 2, 3}, {4, 5, 6, 7}}) == "");
  CHECK(verdict({{0, 1, 2, 3}, {4, 5, 6, -1}}) == "");
  CHECK(verdict({{0, 1, 2, 3}, {4, 5, -1, 7}}) == "missing");
  CHECK(verdict({{0, 1, 2, 3}, {0, 1, 2, 3}}) == "missing");
}

TEST_CASE("addends are judged by their sum", "[findings]") {
  JudgedWorld judged = world();
  const auto split = [](double factor) {
    return [=](int64_t rank, Observation& seen) {
      if (seen.name != "x.output") return;
      const at::Tensor part = numbered({4, 6}, 33);
      const int64_t tp = rank % 3;
      seen.part = Part::kPartial;
      seen.partial_axes = {"tp"};
      seen.tensor = tp == 0 ? part * 0.5 : tp == 1 ? seen.tensor * factor - part : part * 0.5;
    };
  };
  CHECK(judged.run(split(1)).verdict == "match");
  const Divergence wrong = found(judged, split(2));
  CHECK(wrong.tensor == "x.output");
  CHECK_THAT(wrong.pattern, Catch::StartsWith("the sum of the addends over tp: ") &&
                                Catch::Contains("2.00 x golden"));
}

TEST_CASE("a float32 tensor in a float64 run is the finding, with its ranks", "[findings]") {
  const Divergence narrow = found(world(), in("x.output", [](int64_t rank, const at::Tensor& t) {
    return rank == 1 ? t.to(at::kFloat) : t;
  }));
  CHECK(narrow.tensor == "x.output");
  CHECK(narrow.ranks == Ranks{1});
  CHECK_THAT(narrow.pattern, Catch::StartsWith("float32 tensor in a float64 run on rank 1 only"));
}

TEST_CASE("what the golden does not have comes last", "[findings]") {
  const CaseResult result = world().run([](int64_t, Observation& seen) {
    if (seen.name == "x.output") seen.name = "z.output";
    if (seen.name == "grad.b") seen.tensor = seen.tensor * 2;
  });
  CHECK(result.divergence->tensor == "x.output");  // unobserved, and first in the golden
  CHECK(result.divergence->kind == "missing");
}

TEST_CASE("the last good observation and the collectives since are those of the worst rank",
          "[findings]") {
  const Divergence late = found(world(), in(kGrad, [](int64_t rank, const at::Tensor& t) {
    return rank == 4 ? t * 2 : t;
  }));
  CHECK(late.last_good == "x.grad_input");
  CHECK(late.collectives == std::vector<std::string>{"all_reduce(sum) tp[0,1] [4] float64 call 6",
                                                     "all_reduce(sum) tp[0,1] [4] float64 call 7"});
  const Divergence first = found(world(), in("x.output", [](int64_t, const at::Tensor& t) {
    return t * 2;
  }));
  CHECK(first.last_good.empty());
  CHECK(first.collectives.size() == 2);
}

TEST_CASE("a failure is told as a finished piece of work", "[findings]") {
  CaseResult result = world().run(in(kGrad, [](int64_t rank, const at::Tensor& t) {
    return rank % 3 == 1 ? t * 2 : t;
  }));
  result.spec.file = "scenarios/x.yaml";
  result.spec.line = 11;
  const std::string text = describe_result(result, false);
  CHECK_THAT(text, Catch::StartsWith("MISMATCH  scenarios/x.yaml:11"));
  CHECK_THAT(text, Catch::Contains("grad.w   global [12, 10]   S(0)tp"));
  CHECK_THAT(text, Catch::Contains("tp 1"));
  CHECK_THAT(text, Catch::Contains("pattern   every element is 2.00 x golden on ranks 1, 4 (tp 1)"));
  CHECK_THAT(text, Catch::Contains("after     x.grad_input was right on that rank; since then 2"));
}
