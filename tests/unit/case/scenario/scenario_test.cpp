#include "sim/case/scenario/scenario.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/unit/case/scenario/scenario_text.h"

using namespace shardproof;
using namespace shardproof::sim;
using nlohmann::json;

namespace {

std::vector<std::string> names_of(const std::string& text) {
  std::vector<std::string> names;
  for (const CaseSpec& spec : parse_scenario_text("tp/x.yaml", text).cases)
    names.push_back(spec.name);
  return names;
}

}  // namespace

TEST_CASE("All wrong keys of a file are said at once, in its order", "[scenario]") {
  const std::string said = refusal_of(R"(
name: "a b"
model: {hidden_size: many, vocab_sizes: 3}
parallel:
  tensor_parallel_size: [2]
  data_parallel: fsdpp
data: {lengths: [5, x, 3]}
faults:
  - {kind: kil, rank: 0}
  - {rank: 1}
  - {kind: kill, rank: 1, at_cal: 2}
matrix:
  mesh:
    - {name: good, parallel.tensor_parallel_size: 2}
    - {name: bad, parallel.tensor_paralel_size: 2}
    - {parallel.tensor_parallel_size: 4}
  sead: [1, 2]
)");
  size_t at = 0;
  for (const char* expected :
       {"x.yaml:2:",  "'a b' is not a name", "x.yaml:3:",  "hidden_size", "vocab_sizes",
        "x.yaml:5:",  "x.yaml:6:",           "fsdpp",      "x.yaml:7:",   "x.yaml:9:",
        "kil",        "x.yaml:10:",          "no kind",    "x.yaml:11:",  "at_cal",
        "x.yaml:15:", "tensor_paralel_size", "x.yaml:16:", "has no name", "x.yaml:17:",
        "sead"}) {
    const size_t next = said.find(expected, at);
    INFO(said);
    INFO(expected);
    REQUIRE(next != std::string::npos);
    at = next;
  }
  CHECK(std::count(said.begin(), said.end(), '\n') == 11);
}

TEST_CASE("Rows that do not fit are all said when every key is right", "[scenario]") {
  const std::string said = refusal_of(R"(
name: x
data: {lengths: [5, 3]}
matrix:
  rows:
    - {name: a, data.dropped_samples: [2]}
    - {name: b}
    - {name: c, data.batch_size: 3}
)");
  INFO(said);
  CHECK(said.find("x.yaml:6:") < said.find("x.yaml:8:"));
  CHECK(said.find("x.yaml:8:") != std::string::npos);
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE("A scenario sets every part of a case", "[scenario]") {
  const CaseSpec spec = only_case(R"(
name: whole
workload: train
precision: float32
seed: 7
model: {hidden_size: 64, num_attention_heads: 8, num_key_value_heads: 2, rope_theta: 500.5,
        rope_scaling: {rope_type: linear, factor: 2.0}, tie_word_embeddings: true, pad_token_id: 3}
parallel: {data_parallel_size: 3, tensor_parallel_size: 2, sequence_parallel: true,
           context_layout: contiguous, context_rotation: all_to_all}
data: {lengths: [5, 1, 9], sequence_length: 12, token_mask_probability: 0.5, dropped_samples: [2],
       uneven: true}
run:
  steps: 4
  train_micro_batch_size: 2
  max_grad_norm: null
  loss: {kind: clipped_pg, eps: 0.3, beta: 0.05, normalization: sequence}
  optimizer: {name: torch.optim.SGD, kwargs: {lr: 0.1, momentum: 0.9, weight_decay: 0}}
world: {backend: gloo, hang_s: 1.5, deadline_s: 30}
faults: [{kind: kill, rank: 5, label: "o_proj", at_call: 2}]
expect: {verdict: mismatch, kind: schedule, collectives: {tp: {all_reduce: 3}}}
tags: [a, b]
)",
                                  {Backend::kGloo, DeviceKind::kCpu});
  CHECK(spec.name == "tp/whole");
  CHECK(spec.line == 2);
  CHECK(spec.precision == Precision::kFloat32);
  CHECK(spec.model["rope_scaling"]["factor"] == 2.0);
  CHECK(spec.parallel.dp == 3);
  CHECK(spec.parallel.sequence_parallel);
  CHECK(spec.parallel.context_layout == ContextLayout::kContiguous);
  CHECK(spec.parallel.context_rotation == Rotation::kAllToAll);
  CHECK(spec.data.lengths == std::vector<int64_t>{5, 1, 9});
  CHECK(spec.data.batch_size == 3);
  CHECK(spec.data.seq_len == 12);
  CHECK(spec.data.dropped_samples == std::vector<int64_t>{2});
  CHECK(spec.data.uneven);
  CHECK(spec.steps == 4);
  CHECK(spec.micro_batch_size == 2);
  CHECK(spec.loss.kind == LossKind::kClippedPolicyGradient);
  CHECK(spec.loss.clip_eps == 0.3);
  CHECK(spec.loss.normalization == LossNormalization::kSequence);
  CHECK(spec.optimizer.kind == OptimizerKind::kSgd);
  CHECK(spec.optimizer.momentum == 0.9);
  CHECK(spec.optimizer.weight_decay == 0);
  CHECK(spec.optimizer.max_norm == 0);
  CHECK(spec.world.backend == Backend::kGloo);
  CHECK(spec.world.hang_s == 1.5);
  REQUIRE(spec.faults.size() == 1);
  CHECK(spec.faults[0].label == "o_proj");
  CHECK(spec.expect.kind == "schedule");
  CHECK(spec.expect.collectives["tp"]["all_reduce"] == 3);
  CHECK(spec.tags == std::vector<std::string>{"a", "b"});
}

TEST_CASE("A name without a folder gets its file's, and no name is the file's own", "[scenario]") {
  CHECK(names_of("name: a/b\n") == std::vector<std::string>{"a/b"});
  CHECK(names_of("name: b\n") == std::vector<std::string>{"tp/b"});
  CHECK(names_of("seed: 1\n") == std::vector<std::string>{"tp/x"});
  check_refused({{"name: 'a b'\n", "tp/x.yaml:1:1: 'a b' is not a name"}});
}

TEST_CASE("A matrix is the product of its lists, the last varying fastest", "[scenario]") {
  CHECK(names_of(R"(
matrix:
  parallel.tensor_parallel_size: [1, 2]
  mesh:
    - {name: plain}
    - {name: dp2, parallel.data_parallel_size: 2}
  data.lengths: [[3, 4], [5]]
)") == std::vector<std::string>{"tp/x[tp=1,plain,lengths=3-4]", "tp/x[tp=1,plain,lengths=5]",
                                "tp/x[tp=1,dp2,lengths=3-4]", "tp/x[tp=1,dp2,lengths=5]",
                                "tp/x[tp=2,plain,lengths=3-4]", "tp/x[tp=2,plain,lengths=5]",
                                "tp/x[tp=2,dp2,lengths=3-4]", "tp/x[tp=2,dp2,lengths=5]"});
}

TEST_CASE("A row of a matrix replaces what the scenario says, blocks or dotted keys",
          "[scenario]") {
  const Scenario scenario = parse_scenario_text("tp/x.yaml", R"(
seed: 1
expect: {verdict: match}
matrix:
  rows:
    - {name: a, seed: 2, parallel: {tensor_parallel_size: 2}, expect: {verdict: refused}}
    - {name: b, parallel.tensor_parallel_size: 4, skip: not today}
)");
  REQUIRE(scenario.cases.size() == 2);
  CHECK(scenario.cases[0].seed == 2);
  CHECK(scenario.cases[0].parallel.tp == 2);
  CHECK(scenario.cases[0].expect.verdict == Verdict::kRefused);
  CHECK(scenario.cases[1].seed == 1);
  CHECK(scenario.cases[1].parallel.tp == 4);
  CHECK(scenario.cases[1].expect.verdict == Verdict::kMatch);
  CHECK(scenario.cases[1].skip == "not today");
}

TEST_CASE("A swept key replaces the scenario's own value, and has its short name in the names",
          "[scenario]") {
  const Scenario scenario = parse_scenario_text("sc/own.yaml", R"(
name: mine
precision: bfloat16
parallel: {data_parallel_size: 4, tensor_parallel_size: 3}
matrix:
  precision: [float32, float64]
  parallel.data_parallel_size: [2]
)");
  REQUIRE(scenario.cases.size() == 2);
  CHECK(scenario.cases[0].name == "sc/mine[precision=float32,dp=2]");
  CHECK(scenario.cases[1].name == "sc/mine[precision=float64,dp=2]");
  CHECK(scenario.cases[0].precision == Precision::kFloat32);
  CHECK(scenario.cases[1].precision == Precision::kFloat64);
  for (const CaseSpec& spec : scenario.cases) {
    CHECK(spec.parallel.dp == 2);
    CHECK(spec.parallel.tp == 3);
  }
}

TEST_CASE("A matrix that cannot be expanded is refused with its place", "[scenario]") {
  check_refused({{"matrix: {tp: [1, 2]}\n", "tp/x.yaml:1:10: unknown key 'tp' in matrix"},
                 {"matrix: {seed: []}\n", "an empty list"},
                 {"matrix: {seed: [1, 2], of: [{name: a, seed: 3}, {name: b}]}\n",
                  "tp/x.yaml:1:39: two lists of the matrix set seed"},
                 {"matrix: {m: [{name: \"a,b\"}, {name: a}], n: [{name: c}, {name: \"b,c\"}]}\n",
                  "two cases of the matrix have the name 'a,b,c'"},
                 {"matrix: {seed: 3}\n", "matrix.seed is 3"},
                 {"matrix: [1]\n", "matrix is a list; it must be a map of lists"},
                 {"matrix: {m: [{name: \"a\\x01b\"}]}\n", "which cannot be shown"},
                 {"matrix: {seed: [1, 1]}\n", "matrix.seed has seed=1 twice"},
                 {"matrix: {rows: [{seed: 1}]}\n", "has no name"},
                 {"matrix: {seed: [1, x]}\n", "tp/x.yaml:1:20: seed is the text 'x'"},
                 {"matrix: {world.backend: [gloo]}\n", "is not swept"}});
}

TEST_CASE("Settings that contradict each other are refused where they stand", "[scenario]") {
  check_refused(
      {{"data: {lengths: [3, 4], batch_size: 3}\n",
        "data.batch_size is 3, but data.lengths gives 2 samples"},
       {"data: {batch_size: 4}\nrun: {train_global_batch_size: 8}\n",
        "tp/x.yaml:2:7: run.train_global_batch_size is 8"},
       {"run: {sequence_packing: {enabled: true}, dynamic_batching: {enabled: true}}\n",
        "sequence_packing and dynamic_batching are both enabled"},
       {"run: {sequence_packing: {enabled: true}, train_micro_batch_size: 2}\n",
        "run.train_micro_batch_size is given beside"},
       {"model: {folder: m, hidden_size: 8}\n",
        "model.hidden_size and model.folder are both given"},
       {"data: {case: c}\nrun: {optimizer: {kwargs: {lr: 1}}}\n",
        "run.optimizer.kwargs.lr and data.case are both given"},
       {"faults: [{rank: 0}]\n", "an item of faults has no kind"},
       {"faults: [{knd: kill}]\n", "did you mean kind?"},
       {"expect: {collectives: {tq: {all_reduce: 1}}}\n", "unknown axis 'tq'"},
       {"faults: [{kind: drop, axis: 'pp holders of w'}]\n", "is a group of ranks and no axis"},
       {"parallel: {pp: {layout: 'E(t'}}\n", "a ')' is missing at position 3"},
       {"expect: {verdict: mismatch, nothing_counted: true}\n",
        "is of a match, and expect.verdict"},
       {"faults: [{kind: drop, axis: 'cp,dp'}]\n",
        "'cp,dp' is not in the order of the mesh, which is dp+cp"},
       {"expect: {collectives: {tp: {allreduce: 1}}}\n", "did you mean all_reduce?"},
       {"expect: {verdict: mismatch, collectives: {tp: {all_reduce: 1}}}\n",
        "expect.collectives beside a mismatch of any kind: calls are counted where"},
       {"expect: {verdict: mismatch, kind: vallues}\n", "did you mean values?"},
       {"expect: {tensor: loss}\n", "expect.tensor is loss, which no match has"},
       {"expect: {verdict: failed, tensor: loss}\n", "which no failed has"},
       {"expect: {verdict: mismatch, kind: hung}\n",
        "tp/x.yaml:1:29: expect.kind is hung, which no mismatch has"},
       {"expect: {verdict: refused, kind: threw}\n", "which no refused has"}});
  for (const char* fit : {"{verdict: mismatch, kind: race}", "{verdict: failed, kind: in_flight}",
                          "{verdict: refused, kind: refused}", "{verdict: match, tensor: ''}"}) {
    CHECK_NOTHROW(only_case(std::string("expect: ") + fit + "\n"));
  }
}

TEST_CASE("Faults that would change nothing are refused", "[scenario]") {
  const auto in_nodes = [](const std::string& nodes, const std::string& fault) {
    return "parallel: {tensor_parallel_size: 4}\nworld: {backend: gloo, " + nodes +
           "}\nfaults: [{kind: " + fault + "}]\n";
  };
  const std::string alone = "no packet of the only node crosses it; set world.nodes to 2 or more";
  check_refused({{"faults: [{kind: delay, seconds: 0}]\n",
                  "the fault delay has seconds 0, which changes nothing; set seconds above 0"},
                 {in_nodes("nodes: 2", "lag, seconds: 0"), "the fault lag has seconds 0"},
                 {in_nodes("nodes: 2", "lose, loss: 0"), "the fault lose has loss 0"},
                 {in_nodes("nodes: 2, links: {inter_node: {loss: 0.2}}", "lose, loss: 0.2"),
                  "the link loses 0.2 of its packets without it"},
                 {in_nodes("nodes: 2, links: {inter_node: {gb_per_s: 0.5}}", "slow, gb_per_s: 1"),
                  "the fault slow has a rate of 1 GB/s, and the link has 1 without it; set "
                  "gb_per_s below 1"},
                 {in_nodes("nodes: 1", "cut"), alone},
                 {in_nodes("nodes: 1", "slow"), alone},
                 {in_nodes("ranks_per_node: 4", "lag"), alone}});
  for (const char* fits : {"lose, seconds: 0", "lag, loss: 0", "cut", "slow, loss: 0"}) {
    CHECK(refusal_of(in_nodes("ranks_per_node: 2", fits)) == "accepted");
  }
  CHECK(refusal_of("faults: [{kind: drop, seconds: 0}]\n") == "accepted");
}

TEST_CASE("Axes of a fault are named as in calls too", "[scenario]") {
  for (const char* axis : {"dp+cp", "'dp,cp'", "refit", "world"}) {
    CHECK_NOTHROW(only_case(std::string("faults: [{kind: drop, axis: ") + axis + "}]\n"));
  }
}

TEST_CASE("A world size decides dp, or must be the mesh's", "[scenario]") {
  CHECK(only_case("world: {size: 6}\nparallel: {tensor_parallel_size: 2}\n").parallel.dp == 3);
  check_refused({{"world: {size: 5}\nparallel: {tensor_parallel_size: 2}\n",
                  "tp/x.yaml:1:9: world.size is 5, but pp * cp * ulysses * tp is 2"}});
}

TEST_CASE("Skips have a reason and hold where all their conditions do", "[scenario]") {
  const std::string text = R"(
matrix: {parallel.tensor_parallel_size: [1, 2, 3], parallel.sequence_parallel: [false, true]}
skip:
  - {reason: one rank, when: {parallel.tensor_parallel_size: 1, parallel.sequence_parallel: true}}
  - {reason: not here, when: {world.backend: [gloo, nccl], parallel.tensor_parallel_size: [2, 3]}}
)";
  std::vector<std::string> emulated, gloo;
  for (const CaseSpec& spec : parse_scenario_text("x.yaml", text).cases)
    emulated.push_back(spec.skip);
  for (const CaseSpec& spec :
       parse_scenario_text("x.yaml", text, {Backend::kGloo, DeviceKind::kCpu}).cases) {
    gloo.push_back(spec.skip);
  }
  CHECK(emulated == std::vector<std::string>{"", "one rank", "", "", "", ""});
  CHECK(gloo ==
        std::vector<std::string>{"", "one rank", "not here", "not here", "not here", "not here"});
  CHECK(only_case("skip: too slow\n").skip == "too slow");
  check_refused({{"skip: {reason: x, when: {sed: 1}}\n", "did you mean seed?"},
                 {"skip: true\n", "skip is true"}});
}

TEST_CASE("A scenario for one backend is skipped on others, with the reason", "[scenario]") {
  CHECK(only_case("world: {backend: gloo}\n").skip ==
        "this scenario is for gloo only (world.backend)");
  CHECK(only_case("world: {backend: [gloo, emulated]}\n").skip.empty());
}
