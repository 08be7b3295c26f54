#include "sim/case/case_spec.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "sim/case/reference.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/case/scenario/scenario_text.h"

using namespace shardproof::sim;
using nlohmann::json;

TEST_CASE("A case comes back whole from its JSON", "[scenario]") {
  CaseSpec spec = only_case(R"(
parallel: {tensor_parallel_size: 3, custom_parallel_plan: {"model.norm": replicate}}
faults: [{kind: skip, rank: 2}]
expect: {verdict: mismatch, kind: schedule, collectives: {tp: {barrier: 1}}}
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

TEST_CASE("A copy that keeps the time of the last write is another file", "[scenario]") {
  const ScratchFolder folder;
  folder.write("model.safetensors", "one");
  CaseSpec spec = only_case("seed: 3\n");
  spec.weights_folder = folder.path();
  const std::filesystem::path weights = folder.path() + "/model.safetensors";
  const auto written = std::filesystem::last_write_time(weights);
  const std::string key = golden_key(spec);
  folder.write("model.safetensors", "two");
  std::filesystem::last_write_time(weights, written);
  CHECK(golden_key(spec) != key);
}

TEST_CASE("Weights and batch files count by size and time of change", "[scenario]") {
  const ScratchFolder folder;
  folder.write("model.safetensors", "one");
  folder.write("batch.safetensors", "batch");
  CaseSpec spec = only_case("seed: 3\n");
  spec.weights_folder = folder.path();
  spec.data.file = folder.path() + "/batch.safetensors";
  const std::string key = golden_key(spec);
  CHECK(golden_key(spec) == key);
  folder.write("model.safetensors", "longer");
  const std::string changed = golden_key(spec);
  CHECK(changed != key);
  folder.write("batch.safetensors", "longer too");
  CHECK(golden_key(spec) != changed);
  folder.remove("model.safetensors");
  folder.write("model.safetensors.index.json", R"({"weight_map": {"w": "part-1"}})");
  folder.write("part-1", "one");
  const std::string sharded = golden_key(spec);
  folder.write("part-1", "longer");
  CHECK(golden_key(spec) != sharded);
}

TEST_CASE("A reference is keyed by what it runs with", "[scenario]") {
  const auto key = [](const std::string& text) {
    return reference_key(only_case("reference: {mesh: {dp: 2}}\ndata: {batch_size: 4}\n" + text));
  };
  CHECK(key("") == key("name: other\ntags: [soak]\nparallel: {tensor_parallel_size: 2}\n"));
  CHECK(key("") != key("data.uneven: true\n"));
}
