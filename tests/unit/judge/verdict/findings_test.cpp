// The first tensor of a planted error, its ranks and its history.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "sim/judge/verdict/history.h"
#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;
using Ranks = std::vector<int64_t>;

TEST_CASE("the first divergence follows the golden: forward, backward, step", "[findings]") {
  const auto both = [](const std::string& a, const std::string& b) {
    return [=](int64_t, Observation& seen) {
      if (seen.name == a || seen.name == b) seen.tensor = seen.tensor + 0.125;
    };
  };
  CHECK(found(judge::world(), both("grad.b", "x.output")).tensor == "x.output");
  CHECK(found(judge::world(), both("grad.b", "x.grad_input")).tensor == "x.grad_input");
  CHECK(found(judge::world(), both("x.grad_input", "y.grad_input")).tensor == "y.grad_input");
  CHECK(found(judge::world(), both("param.w", kGrad)).tensor == kGrad);
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

TEST_CASE("of copies that differ within the allowance the odd one is named", "[findings]") {
  const Divergence copies = found(judge::world(), in("grad.b", [](int64_t rank, at::Tensor t) {
                                    if (rank == 2) t[0] = std::nextafter(t[0].item<double>(), 10.0);
                                    return t;
                                  }));
  CHECK(copies.kind == ResultKind::kReplicas);
  CHECK(copies.tensor == "grad.b");
  CHECK_THAT(copies.pattern, Catch::Contains("2 different copies") &&
                                 Catch::Contains("the odd one on rank 2 only"));
}

TEST_CASE("of copies that are all different three are named, and the rest counted", "[findings]") {
  const Divergence copies = found(judge::world(), in("grad.b", [](int64_t rank, at::Tensor t) {
                                    t[rank % 3] = t[rank % 3].item<double>() *
                                                  (1 + static_cast<double>(rank + 1) * 0x1p-52);
                                    return t;
                                  }));
  CHECK_THAT(copies.pattern,
             Catch::Contains("6 different copies") && Catch::Contains(" and 3 more"));
}

TEST_CASE("shards of one tensor are no replicas of each other", "[findings]") {
  // Ranks 0 and 3 hold the same rows of grad.w and are compared with each other.
  const CaseResult result = judge::world().run(in(kGrad, [](int64_t rank, at::Tensor t) {
    if (rank == 3) t[0][0] = std::nextafter(t[0][0].item<double>(), 10.0);
    return t;
  }));
  CHECK(result.verdict == Verdict::kMismatch);
  CHECK(result.kind == ResultKind::kReplicas);
  CHECK(result.divergence->ranks == Ranks{0, 3});
  CHECK_THAT(result.divergence->pattern, Catch::Contains(": one on rank 0 only") &&
                                             Catch::Contains(", one on rank 3 only") &&
                                             !Catch::Contains("odd one"));
}

TEST_CASE("ranks that hold different tokens need not agree, those with the same must",
          "[findings]") {
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
      endings.push_back(finished(rank, observe_all(spec, golden, {one}, rank)));
    }
    return judge::judge(spec, endings);
  };
  CHECK(ended(0).verdict == Verdict::kMatch);
  CHECK(ended(1e-14).kind == ResultKind::kReplicas);
}

TEST_CASE("a golden tensor that no rank observed is missing, at its own place", "[findings]") {
  const CaseResult result = judge::world().run([](int64_t, Observation& seen) {
    if (seen.name == kGrad) seen.tensor = at::Tensor();
    if (seen.name == "param.w") seen.tensor = seen.tensor + 1;
  });
  CHECK(result.kind == ResultKind::kMissing);
  CHECK(result.divergence->tensor == kGrad);
}

TEST_CASE("a tensor that one rank of the mesh did not observe is missing there", "[findings]") {
  const Divergence part = found(judge::world(), [](int64_t rank, Observation& seen) {
    if (seen.name == "grad.b" && rank == 2) seen.tensor = at::Tensor();
  });
  CHECK(part.kind == ResultKind::kMissing);
  CHECK(part.tensor == "grad.b");
  CHECK(part.ranks == Ranks{2});
  CHECK_THAT(part.pattern, Catch::Contains("not observed on rank 2 only"));
}

TEST_CASE("every element of a gradient must be held by some rank", "[findings]") {
  const Divergence part = found(judge::world(), [](int64_t rank, Observation& seen) {
    if (seen.name == kGrad && rank % 3 == 2) seen.tensor = at::Tensor();  // tp 2 on every dp rank
  });
  CHECK(part.kind == ResultKind::kMissing);
  CHECK(part.tensor == kGrad);
  CHECK_THAT(part.pattern, Catch::Contains("do not hold every element"));
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
      endings.push_back(finished(rank, observe_all(spec, golden, {one}, rank)));
    }
    return judge::judge(spec, endings).kind;
  };
  CHECK(verdict({{0, 1, 2, 3}, {4, 5, 6, 7}}) == ResultKind::kNone);
  CHECK(verdict({{0, 1, 2, 3}, {4, 5, 6, -1}}) == ResultKind::kNone);
  CHECK(verdict({{0, 1, 2, 3}, {4, 5, -1, 7}}) == ResultKind::kMissing);
  CHECK(verdict({{0, 1, 2, 3}, {0, 1, 2, 3}}) == ResultKind::kMissing);
}

TEST_CASE("addends are judged by their sum", "[findings]") {
  JudgedWorld judged = judge::world();
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
  CHECK(judged.run(split(1)).verdict == Verdict::kMatch);
  const Divergence wrong = found(judged, split(2));
  CHECK(wrong.tensor == "x.output");
  CHECK_THAT(wrong.pattern, Catch::StartsWith("the sum of the addends over tp: ") &&
                                Catch::Contains("2.00 x golden"));
}

TEST_CASE("what the golden does not have comes last", "[findings]") {
  const CaseResult result = judge::world().run([](int64_t, Observation& seen) {
    if (seen.name == "x.output") seen.name = "z.output";
    if (seen.name == "grad.b") seen.tensor = seen.tensor * 2;
  });
  CHECK(result.divergence->tensor == "x.output");  // not observed, and first in the golden
  CHECK(result.divergence->kind == ResultKind::kMissing);
}

TEST_CASE("the last good observation and the collectives since are those of the worst rank",
          "[findings]") {
  const Divergence late =
      found(judge::world(),
            in(kGrad, [](int64_t rank, const at::Tensor& t) { return rank == 4 ? t * 2 : t; }));
  CHECK(late.last_good == "x.grad_input");
  CHECK(late.collectives == std::vector<std::string>{"all_reduce(sum) tp[0,1] [4] float64 call 6",
                                                     "all_reduce(sum) tp[0,1] [4] float64 call 7"});
  const Divergence first =
      found(judge::world(), in("x.output", [](int64_t, const at::Tensor& t) { return t * 2; }));
  CHECK(first.last_good.empty());
  CHECK(first.collectives.size() == 2);
}

TEST_CASE("of many collectives those that name the tensor are listed first", "[findings]") {
  CaseResult result =
      judge::world().run(in("x.output", [](int64_t, const at::Tensor& t) { return t * 2; }));
  std::vector<std::string>& calls = result.divergence->collectives;
  calls = {"all_reduce(sum) dp[0,1] [4] float64 'x.output counts'"};
  for (int i = 0; i < 9; ++i) {
    calls.push_back(fmt::format("all_reduce(sum) tp[0,1] [4] float64 'layer {}'", i));
  }
  const std::string text = describe_result(result, false);
  CHECK_THAT(text,
             Catch::Contains("since then 10 collectives:\n            .. 4 others\n"
                             "            all_reduce(sum) dp[0,1] [4] float64 'x.output counts'\n"
                             "            all_reduce(sum) tp[0,1] [4] float64 'layer 4'\n"));
  CHECK_THAT(text, Catch::Contains("'layer 8'") && !Catch::Contains("'layer 3'"));
}

TEST_CASE("a collective with the tensor's name is told where the last right one came after it",
          "[findings]") {
  const auto row = [](const char* name, int64_t step, int64_t order, int64_t calls, bool right) {
    ResultRow out{right ? Outcome::kMatch : Outcome::kMismatch};
    out.name = name;
    out.step = step;
    out.order = order;
    out.calls_before = calls;
    return out;
  };
  RankReport report;
  report.calls = {"all_reduce(sum) dp[0,1] [2] float64 'loss counts'",
                  "all_reduce(sum) dp[0,1] [3] float64 'loss counts'",
                  "all_reduce(sum) tp[0,1] [4] float64 'embed forward'",
                  "all_reduce(sum) dp[0,1] [1] float64 'loss'"};
  report.rows = {row("loss", 1, 0, 1, true), row("logprobs", 2, 1, 3, true),
                 row("loss", 2, 2, 4, false)};
  const auto history = [&] {
    Divergence out;
    out.tensor = "loss";
    out.step = 2;
    out.worst = report.rows.back();
    add_history({report}, out);
    return out;
  };
  const Divergence found = history();
  CHECK(found.last_good == "logprobs");
  CHECK(found.collectives == std::vector<std::string>{report.calls[3]});
  CHECK(found.earlier == std::vector<std::string>{report.calls[1]});  // of this step
  CaseResult result;
  result.verdict = Verdict::kMismatch;
  result.divergence = found;
  CHECK_THAT(describe_result(result, false),
             Catch::Contains("logprobs was right on that rank; since then one collective:\n"
                             "            all_reduce(sum) dp[0,1] [1] float64 'loss'\n"
                             "            earlier in this step, with the tensor's name:\n"
                             "            all_reduce(sum) dp[0,1] [3] float64 'loss counts'"));
  CHECK(names_tensor(report.calls[1], "loss"));
  CHECK_FALSE(names_tensor(report.calls[1], "los"));  // a part of a word
  CHECK_FALSE(names_tensor(report.calls[1], "count"));
  report.rows[1].outcome = Outcome::kMismatch;  // then a step before is the last right one
  const Divergence late = history();
  CHECK(late.collectives.size() == 3);
  CHECK(late.earlier.empty());
}

TEST_CASE("a bucket is named that moved the tensor before the last right one", "[findings]") {
  const auto row = [](const char* name, int64_t order, bool right) {
    ResultRow out{right ? Outcome::kMatch : Outcome::kMismatch};
    out.name = name;
    out.phase = Phase::kStep;
    out.step = 1;
    out.order = order;
    out.calls_before = 3;
    return out;
  };
  RankReport report;
  report.calls = {"all_reduce(avg) dp[0,1] [9] float64 'grad.a .. grad.c'",
                  "all_reduce(avg) dp[0,1] [9] float64 'grad.d .. grad.e'",
                  "all_reduce(sum) dp[0,1] [1] float64 'loss'"};
  report.rows = {row("grad.e", 4, true), row("grad.d", 3, true), row("grad.c", 2, true),
                 row("grad.b", 1, false), row("grad.a", 0, true)};
  Divergence found;
  found.tensor = "grad.b";
  found.step = 1;
  found.worst = report.rows[3];
  add_history({report}, found);
  CHECK(found.collectives.empty());
  CHECK(found.earlier == std::vector<std::string>{report.calls[0]});
  CaseResult result;
  result.verdict = Verdict::kMismatch;
  result.divergence = found;
  CHECK_THAT(describe_result(result, false),
             Catch::Contains("grad.c was right on that rank; no collective since\n"
                             "            earlier in this step, of tensors around it:\n"
                             "            all_reduce(avg) dp[0,1] [9] float64 'grad.a .. grad.c'"));
}

TEST_CASE("a failure is told as a finished piece of work", "[findings]") {
  CaseResult result = judge::world().run(
      in(kGrad, [](int64_t rank, const at::Tensor& t) { return rank % 3 == 1 ? t * 2 : t; }));
  result.spec.file = "scenarios/x.yaml";
  result.spec.line = 11;
  const std::string text = describe_result(result, false);
  CHECK_THAT(text, Catch::StartsWith("MISMATCH  scenarios/x.yaml:11"));
  CHECK_THAT(text, Catch::Contains("grad.w   global [12, 10]   S(0)tp"));
  CHECK_THAT(text, Catch::Contains("tp 1"));
  CHECK_THAT(text,
             Catch::Contains("pattern   every element is 2.00 x golden on ranks 1, 4 (tp 1)"));
  CHECK_THAT(text, Catch::Contains("after     x.grad_input was right on that rank; since then 2"));
}
