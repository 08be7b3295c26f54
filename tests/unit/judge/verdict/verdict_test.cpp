#include <catch2/catch.hpp>

#include "sim/judge/verdict/expectations.h"
#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

RankEnding ended(int64_t rank, const std::string& kind, const std::string& message = "",
                 const std::string& last_call = "") {
  RankEnding ending;
  ending.rank = rank;
  ending.kind = enum_of<ResultKind>(kind);
  ending.message = message;
  ending.last_call = last_call;
  if (kind == "finished") {
    RankReport report;
    report.rank = rank;
    ending.bytes = encode(report);
  }
  return ending;
}

CaseResult judged(const std::vector<std::string>& kinds) {
  std::vector<RankEnding> endings;
  for (size_t i = 0; i < kinds.size(); ++i) {
    endings.push_back(ended(static_cast<int64_t>(i), kinds[i], "says " + kinds[i], "some call"));
  }
  return judge::judge(spec_of(1, static_cast<int64_t>(kinds.size())), endings);
}

CaseResult came(const std::string& verdict, const std::string& expected = "match") {
  CaseResult result;
  result.verdict = enum_of<Verdict>(verdict);
  result.as_expected = verdict == expected;
  return result;
}

}  // namespace

TEST_CASE("causes come before what they cause", "[verdict]") {
  const std::vector<std::string> order{"died",         "internal",  "disagreement",
                                       "threw",        "in_flight", "deadlock",
                                       "never_waited", "hung",      "aborted"};
  for (size_t cause = 0; cause < order.size(); ++cause) {
    for (size_t later = cause; later < order.size(); ++later) {
      CAPTURE(order[cause], order[later]);
      const CaseResult result = judged({order[later], "finished", order[cause]});
      CHECK(name_of(result.kind) == order[cause]);
      CHECK(name_of(result.verdict) == (order[cause] == "internal" ? "internal" : "failed"));
      CHECK_THAT(result.message, Catch::Contains("says " + order[cause]));
    }
  }
}

TEST_CASE("ranks that were ended show no failure that a scenario expects", "[verdict]") {
  for (const std::string kind : {"aborted", "threw"}) {
    CaseSpec spec = spec_of(1, 2);
    spec.expect.verdict = Verdict::kFailed;
    const std::vector<RankEnding> endings{ended(0, kind, "not run"), ended(1, kind, "not run")};
    CAPTURE(kind);
    CHECK(judge::judge(spec, endings).as_expected == (kind == "threw"));
    spec.expect.kind = kind;
    CHECK(judge::judge(spec, endings).as_expected);
  }
}

TEST_CASE("the message names the ranks once per different message", "[verdict]") {
  const CaseResult result = judge::judge(
      spec_of(1, 3), {ended(0, "threw", "bad size", "all_reduce x"), ended(1, "threw", "other"),
                      ended(2, "threw", "bad size", "all_reduce x")});
  CHECK(result.message == "ranks 0, 2: bad size (last collective: all_reduce x)\nrank 1: other");
}

TEST_CASE("refused stands when every rank refused, or had not entered a collective", "[verdict]") {
  CHECK(
      judge::judge(spec_of(1, 2), {ended(0, "refused", "no"), ended(1, "refused", "no")}).verdict ==
      Verdict::kRefused);
  const CaseResult followed =
      judge::judge(spec_of(1, 2), {ended(0, "aborted"), ended(1, "refused", "no; do")});
  CHECK(followed.verdict == Verdict::kRefused);
  CHECK(followed.message == "no; do");
}

TEST_CASE("what the machine lacks for one rank is bad input, whatever the others did",
          "[verdict]") {
  for (const char* others : {"finished", "aborted", "hung", "threw", "bad_input"}) {
    std::vector<RankEnding> endings = {ended(0, others, "", "some call"), ended(1, "bad_input"),
                                       ended(2, others, "", "some call")};
    endings[1].message = "no further thread could be started";
    endings[1].shortage = true;
    const CaseResult result = judge::judge(spec_of(1, 3), endings);
    CAPTURE(others);
    CHECK(result.verdict == Verdict::kBadInput);
    CHECK_THAT(result.message, Catch::Contains("no further thread"));
  }
}

TEST_CASE("a rank that hung before its first call had gone on", "[verdict]") {
  const CaseResult result =
      judge::judge(spec_of(1, 2), {ended(0, "hung"), ended(1, "refused", "no")});
  CHECK(result.verdict == Verdict::kFailed);
  CHECK_THAT(result.message, Catch::Contains("rank 1 refused while rank 0 went on"));
}

TEST_CASE("a rank that refuses alone while others communicate is a disagreement", "[verdict]") {
  for (const std::string kind : {"aborted", "deadlock", "hung"}) {
    const CaseResult result = judge::judge(
        spec_of(1, 2), {ended(0, kind, "", "all_reduce x"), ended(1, "refused", "no")});
    CHECK(result.verdict == Verdict::kFailed);
    CHECK(result.kind == ResultKind::kDisagreement);
    CHECK_THAT(result.message, Catch::Contains("rank 1 refused while rank 0 went on") &&
                                   Catch::Contains("all_reduce x"));
  }
  CHECK(judge::judge(spec_of(1, 2), {ended(0, "finished"), ended(1, "bad_input", "x")}).kind ==
        ResultKind::kDisagreement);
}

TEST_CASE("ranks that take weights may wait where the whole mesh refuses", "[verdict]") {
  CaseSpec spec = spec_of(1, 2);
  spec.parallel.inference_tp = 1;
  for (const std::string kind : {"aborted", "deadlock", "hung", "finished"}) {
    const RankEnding taker = ended(2, kind, "", "broadcast refit");
    CAPTURE(kind);
    const CaseResult all =
        judge::judge(spec, {ended(0, "refused", "no"), ended(1, "refused", "no"), taker});
    CHECK(all.verdict == Verdict::kRefused);
    CHECK(all.message == "no");
    const CaseResult one = judge::judge(
        spec, {ended(0, "aborted", "", "all_reduce x"), ended(1, "refused", "no"), taker});
    CHECK(one.kind == ResultKind::kDisagreement);
    CHECK_THAT(one.message, Catch::Contains("rank 1 refused while rank 0 went on"));
  }
  CHECK(judge::judge(spec, {ended(0, "refused", "no"), ended(1, "refused", "no"),
                            ended(2, "died", "gone", "broadcast refit")})
            .kind == ResultKind::kDied);
}

TEST_CASE("bad input is no verdict of a world, and outranks refusals", "[verdict]") {
  const CaseResult result =
      judge::judge(spec_of(1, 2), {ended(0, "refused", "r"), ended(1, "bad_input", "b")});
  CHECK(result.verdict == Verdict::kBadInput);
  CHECK(result.message == "b");
}

TEST_CASE("a death outranks a refusal", "[verdict]") {
  CHECK(judged({"refused", "died"}).kind == ResultKind::kDied);
}

TEST_CASE("a report that cannot be read is a fault of shardproof", "[verdict]") {
  RankEnding broken = ended(0, "finished");
  broken.bytes = "x";
  CHECK(judge::judge(spec_of(1, 1), {broken}).verdict == Verdict::kInternal);
  CHECK(judge::judge(spec_of(1, 1), {}).verdict == Verdict::kInternal);
  CHECK(judged({"values"}).verdict == Verdict::kInternal);
}

TEST_CASE("the exit status is the first of 5, 2, 3, 1, 4 that applies", "[verdict]") {
  CHECK(exit_status({}) == 0);
  CHECK(exit_status({came("match")}) == 0);
  CHECK(exit_status({came("match"), came("refused")}) == 4);
  CHECK(exit_status({came("refused"), came("mismatch")}) == 1);
  CHECK(exit_status({came("mismatch"), came("failed")}) == 3);
  CHECK(exit_status({came("failed"), came("bad_input")}) == 2);
  CHECK(exit_status({came("bad_input"), came("internal")}) == 5);
}

TEST_CASE("what was expected costs nothing, what matched against expectation is 1", "[verdict]") {
  CHECK(exit_status({came("refused", "refused"), came("failed", "failed"),
                     came("mismatch", "mismatch")}) == 0);
  for (const std::string expected : {"mismatch", "failed", "refused"}) {
    CHECK(exit_status({came("match", expected)}) == 1);
  }
  CHECK(exit_status({came("refused", "mismatch")}) == 4);
  CHECK(exit_status({came("failed", "refused")}) == 3);
}

TEST_CASE("an expectation has a verdict, a kind and a first tensor", "[verdict]") {
  CaseSpec spec = spec_of(1, 2);
  spec.expect.verdict = Verdict::kMismatch;
  spec.expect.kind = "values";
  spec.expect.tensor = "grad.w";
  const auto plant = [](int64_t, Observation& seen) { seen.tensor = seen.tensor * 3; };
  const std::vector<Observation> golden{seen("grad.w", numbered({4}))};
  CHECK(JudgedWorld(spec, golden).run(plant).as_expected);
  CHECK_FALSE(JudgedWorld(spec, golden).run().as_expected);
  CHECK(JudgedWorld(spec, golden).run().unexpected == "expected mismatch, got match");
  spec.expect.tensor = "grad.v";
  CHECK(JudgedWorld(spec, golden).run(plant).unexpected ==
        "expected mismatch first in grad.v, got grad.w");
  spec.expect.tensor = "";
  spec.expect.message = "grad.w";
  CHECK(JudgedWorld(spec, golden).run(plant).as_expected);
  spec.expect.message = "grad.v";
  CHECK_THAT(JudgedWorld(spec, golden).run(plant).unexpected,
             Catch::StartsWith("expected mismatch with 'grad.v' in its message, got: "));
  spec.expect.kind = "replicas";
  CHECK_FALSE(JudgedWorld(spec, golden).run(plant).as_expected);
}

TEST_CASE("collectives are counted along their axis on every rank", "[verdict]") {
  CaseSpec spec = spec_of(1, 2);
  const std::vector<Observation> golden{seen("grad.w", numbered({4}))};  // two calls
  spec.expect.collectives = {{"tp", {{"all_reduce", 2}}}};
  CHECK(JudgedWorld(spec, golden).run().as_expected);
  spec.expect.collectives = {{"tp", {{"all_reduce", 2}, {"all_gather", 0}}},
                             {"dp", {{"barrier", 0}}}};
  CHECK(JudgedWorld(spec, golden).run().as_expected);
  spec.expect.collectives = {{"tp", {{"all_reduce", 3}}}};
  const CaseResult result = JudgedWorld(spec, golden).run();
  CHECK(result.verdict == Verdict::kMismatch);
  CHECK(result.kind == ResultKind::kSchedule);
  CHECK(result.message == "ranks 0, 1 made 2 all_reduce along tp, the scenario expects 3");

  RankReport once;
  once.rank = 1;
  once.call_counts = {{{"tp", "all_reduce"}, 1}, {{"tp", "barrier"}, 4}};
  RankReport twice;
  twice.call_counts = {{{"tp", "all_reduce"}, 2}};
  RankReport refitted = once;  // a rank outside of the mesh
  refitted.rank = 2;
  spec.expect.collectives = {{"tp", {{"all_reduce", 2}}}};
  CHECK(unexpected_collectives(spec, {twice, once, refitted}) ==
        "rank 1 made 1 all_reduce along tp, the scenario expects 2");
}

TEST_CASE("a match counts what it compared and names what came nearest to an allowance",
          "[verdict]") {
  const JudgedWorld world(spec_of(1, 2), {seen("x.output", numbered({4}), Phase::kForward),
                                          seen("grad.w", numbered({6}))});
  const CaseResult result = world.run([](int64_t rank, Observation& seen) {
    if (seen.name == "grad.w") seen.tensor = seen.tensor + 1e-11;
  });
  CHECK(result.verdict == Verdict::kMatch);
  CHECK(result.tensors_compared == 2);
  CHECK(result.elements_compared == 20);
  CHECK(result.worst_tensor == "grad.w");
  CHECK(result.worst_ratio > 0.09);
  CHECK_THAT(describe_result(result, false), Catch::StartsWith("MATCH") && !Catch::Contains("\n"));
}

TEST_CASE("colors only where asked for", "[verdict]") {
  const CaseResult result = judged({"died"});
  CHECK(describe_result(result, false).find('\033') == std::string::npos);
  CHECK(describe_result(result, true).find('\033') != std::string::npos);
}

TEST_CASE("the replay command names the one case", "[verdict]") {
  CaseSpec spec = spec_of(2, 2);
  spec.file = "scenarios/tp/a.yaml";
  spec.name = "tp/a[precision=float64,sp=true]";
  spec.world.backend = Backend::kGloo;
  CHECK(
      judge::judge(spec, {}).replay ==
      "shardproof run scenarios/tp/a.yaml --only 'tp/a[precision=float64,sp=true]' --backend gloo");
  spec.world.backend = Backend::kEmulated;
  spec.name = "tp/a";
  CHECK(judge::judge(spec, {}).replay ==
        "shardproof run scenarios/tp/a.yaml --only tp/a --backend emulated");
  spec.file = "cases/my case";
  spec.parallel.sequence_parallel = true;
  spec.precision = Precision::kBFloat16;
  const std::string check =
      "shardproof check 'cases/my case' --mesh pp=1,dp=2,cp=1,ulysses=1,tp=2 --sequence-parallel ";
  CHECK(judge::judge(spec, {}).replay == check + "--precision bfloat16");
  spec.parallel.data_parallel = DataParallelKind::kFsdp;
  CHECK(judge::judge(spec, {}).replay == check + "--data-parallel fsdp --precision bfloat16");
  spec.parallel.data_parallel = DataParallelKind::kHybrid;
  spec.parallel.fsdp = {.replicate_size = 2, .reshard_after_forward = false};
  spec.parallel.activation_checkpointing = CheckpointedRegions::kMlp;
  spec.precision = Precision::kFloat64;
  const std::string hybrid = check +
                             "--data-parallel hybrid --fsdp-no-reshard --replicate-size 2 "
                             "--activation-checkpointing=mlp";
  CHECK(judge::judge(spec, {}).replay == hybrid);
  spec.batching = {{.kind = BatchingKind::kDynamic, .token_budget = 24}};
  CHECK(judge::judge(spec, {}).replay == hybrid + " --dynamic-batching 24");
  spec.batching = {};
  spec.micro_batch_size = 2;
  CHECK(judge::judge(spec, {}).replay == hybrid + " --microbatch 2");
}
