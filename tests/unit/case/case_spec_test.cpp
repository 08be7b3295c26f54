#include "sim/case/case_spec.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "sim/case/scenario/scenario.h"
#include "tests/support/scratch_folder.h"

using namespace shardproof::sim;
using nlohmann::json;

namespace {

CaseSpec parse_one(const std::string& text) {
  return parse_scenario_text("t/x.yaml", text).cases.at(0);
}

}  // namespace

TEST_CASE("A case comes back whole from its JSON", "[scenario]") {
  CaseSpec spec = parse_one(R"(
parallel: {tensor_parallel_size: 3, custom_parallel_plan: {"model.norm": replicate}}
faults: [{kind: skip, rank: 2}]
expect: {verdict: failed, collectives: {tp: {barrier: 1}}}
tags: [x]
data: {lengths: [1, 2]}
)");
  spec.dump_file = "/tmp/out";
  spec.skip = "why";
  spec.options = {{"a", json::array({1, 2.5, "t"})}};
  const json out = to_json(spec);
  const CaseSpec back = case_spec_from_json(json::parse(out.dump()));
  CHECK(to_json(back) == out);
  CHECK(back.parallel.custom_plan["model.norm"] == "replicate");
  CHECK(back.faults.at(0).rank == 2);
  CHECK_THROWS(case_spec_from_json(json::object()));
}

TEST_CASE("Equal goldens have equal keys: mesh, world, names and expectations do not count",
          "[scenario]") {
  const std::string key = golden_key(parse_one("seed: 3\n"));
  for (const std::string other :
       {"seed: 3\nparallel: {tensor_parallel_size: 2, sequence_parallel: true}\n",
        "seed: 3\nname: other\n", "seed: 3\nexpect: {verdict: failed}\n", "seed: 3\ntags: [a]\n",
        "seed: 3\nrun: {train_micro_batch_size: 1}\n", "seed: 3\nworld: {hang_s: 9}\n",
        "seed: 3\ndata: {uneven: true}\n",
        "seed: 3\nparallel: {context_parallel_size: 2, context_layout: contiguous}\n",
        "seed: 3\nparallel: {context_parallel_size: 2, context_rotation: all_gather}\n"}) {
    INFO(other);
    CHECK(golden_key(parse_one(other)) == key);
  }
}

TEST_CASE("Whatever changes a golden's values changes its key", "[scenario]") {
  const std::string key = golden_key(parse_one("seed: 3\n"));
  for (const std::string other :
       {"seed: 4\n", "seed: 3\nprecision: float32\n", "seed: 3\nworkload: logprobs\n",
        "seed: 3\nmodel: {rms_norm_eps: 1e-5}\n", "seed: 3\ndata: {lengths: [16, 16, 16, 15]}\n",
        "seed: 3\ndata: {dropped_samples: [1]}\n", "seed: 3\nrun: {steps: 2}\n",
        "seed: 3\nrun: {loss: {normalization: sequence}}\n", "seed: 3\nrun: {max_grad_norm: 2}\n",
        "seed: 3\nrun: {optimizer: {kwargs: {lr: 0.5}}}\n",
        "seed: 3\nrecord_activations: false\n"}) {
    INFO(other);
    CHECK(golden_key(parse_one(other)) != key);
  }
}

TEST_CASE("Weights and batch files count by size and time of change", "[scenario]") {
  const ScratchFolder folder;
  folder.write("model.safetensors", "one");
  folder.write("batch.safetensors", "batch");
  CaseSpec spec = parse_one("seed: 3\n");
  spec.weights_folder = folder.path();
  spec.data.file = folder.path() + "/batch.safetensors";
  const std::string key = golden_key(spec);
  CHECK(golden_key(spec) == key);
  folder.write("model.safetensors", "longer");
  const std::string changed = golden_key(spec);
  CHECK(changed != key);
  folder.write("batch.safetensors", "longer too");
  CHECK(golden_key(spec) != changed);
}
