// The registry of workloads, and the draws of their inputs.
#include "sim/proofs/workloads.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"

namespace shardproof::sim {
namespace {

Workload named(const std::string& name) {
  return {
      .name = name,
      .inputs = [](Draw&, const Options&) { return WorkloadTensors(); },
      .plain = [](const TensorsByName&, const Options&) { return WorkloadTensors(); },
      .sharded = [](const TensorsByName&, MeshComm&, const Options&) { return WorkloadTensors(); }};
}

bool takes(Workloads& workloads, Workload workload) {
  try {
    workloads.add(std::move(workload));
    return true;
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    return false;
  }
}

TEST_CASE("a workload is found by its name, and only under one that is free") {
  Workloads workloads = {named("mine")};
  CHECK(workloads.find("mine") != nullptr);
  CHECK(workloads.find("yours") == nullptr);
  CHECK_FALSE(takes(workloads, named("mine")));
  CHECK_FALSE(takes(workloads, named("train")));
  CHECK_FALSE(takes(workloads, named("logprobs")));
  CHECK_FALSE(takes(workloads, named("")));
  CHECK_FALSE(takes(workloads, named("a b")));
  CHECK(takes(workloads, named("yours")));
  CHECK(workloads.known().size() == 2);
}

TEST_CASE("a workload without one of its functions, or with options that are no map, is refused") {
  Workloads workloads;
  for (int part = 0; part < 4; ++part) {
    Workload workload = named("w");
    if (part == 0) workload.inputs = nullptr;
    if (part == 1) workload.plain = nullptr;
    if (part == 2) workload.sharded = nullptr;
    if (part == 3) workload.options = 3;
    CHECK_FALSE(takes(workloads, workload));
  }
  CHECK(workloads.empty());
  Workload with_notes = named("w");
  with_notes.sharded = nullptr;
  with_notes.sharded_with_notes = [](const TensorsByName&, MeshComm&, const Options&,
                                     WorkloadNotes&) { return WorkloadTensors(); };
  CHECK(takes(workloads, with_notes));
}

TEST_CASE("two programs' registries do not know each other's workloads") {
  const Workloads a = {named("a")}, b = {named("b")};
  CHECK(a.find("b") == nullptr);
  CHECK(b.find("a") == nullptr);
  const Workloads built_in = built_in_workloads();
  for (const char* name : {"column_parallel_linear", "row_parallel_linear", "mapping"}) {
    CHECK(built_in.find(name) != nullptr);
  }
}

TEST_CASE("draws come from the seed and their place: again the same, never the same twice") {
  Draw first(3), again(3), other(4);
  const at::Tensor x = first.normal({3, 4}), y = first.normal({3, 4});
  CHECK(x.equal(again.normal({3, 4})));
  CHECK(y.equal(again.normal({3, 4})));
  CHECK_FALSE(x.equal(y));
  CHECK_FALSE(x.equal(other.normal({3, 4})));
  const at::Tensor ids = first.integers(7, {200});
  CHECK(ids.scalar_type() == at::kLong);
  CHECK(ids.min().item<int64_t>() == 0);
  CHECK(ids.max().item<int64_t>() == 6);
}

// The plain outputs of a built-in workload with the options `set`.
TensorsByName plain_of(const std::string& name, const Options& set) {
  const Workloads workloads = built_in_workloads();
  const Workload& workload = *workloads.find(name);
  Options options = workload.options;
  options.update(set);
  Draw draw(3);
  TensorsByName full, outputs;
  for (const WorkloadTensor& input : workload.inputs(draw, options)) {
    full[input.name] = input.tensor;
  }
  for (const WorkloadTensor& output : workload.plain(full, options)) {
    outputs[output.name] = output.tensor;
  }
  for (const auto& [input, tensor] : full) outputs[input] = tensor;
  return outputs;
}

std::string bad_input_of(const std::string& name, const Options& set) {
  try {
    plain_of(name, set);
    return "";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    return error.what();
  }
}

TEST_CASE("options that count no ranks, or cut no whole samples, are told from the plain side") {
  for (const char* name : {"dropout_regions", "checkpointed_block"}) {
    for (const char* ranks : {"dp_ranks", "tp_ranks"}) {
      for (const int64_t count : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
        const std::string said = bad_input_of(name, {{ranks, count}});
        INFO(name << ": " << said);
        CHECK(said.find(std::string("option ") + ranks + " is " + std::to_string(count)) !=
              std::string::npos);
      }
    }
    const std::string samples = bad_input_of(name, {{"samples", 5}, {"dp_ranks", 2}});
    CHECK(samples.find("size 5, which does not divide by dp_ranks 2") != std::string::npos);
    const std::string parts =
        bad_input_of(name, {{"width", 7}, {"hidden", 7}, {"tp_ranks", 2}, {"tokens", 4}});
    CHECK(parts.find("size 7, which does not divide by tp_ranks 2") != std::string::npos);
  }
  for (const char* mapping : {"all_to_all_with_all_to_all_backward",
                              "copy_with_all_reduce_backward", "slice_with_all_gather_backward"}) {
    for (const int64_t count : {0, -2}) {
      const std::string said = bad_input_of("mapping", {{"mapping", mapping}, {"ranks", count}});
      CHECK(said.find("option ranks is " + std::to_string(count)) != std::string::npos);
    }
  }
  const std::string traded = bad_input_of(
      "mapping",
      {{"ranks", 2}, {"shape", {5, 3}}, {"mapping", "all_to_all_with_all_to_all_backward"}});
  CHECK(traded.find("shape is [5, 3], whose first dim 2 ranks cannot trade") != std::string::npos);
  const std::string copies =
      bad_input_of("refit", {{"data_parallel", "hybrid"}, {"trainer_dp", 3}});
  CHECK(copies.find("trainer_dp is 3; give a multiple of 2") != std::string::npos);
}

TEST_CASE("a weight's first values: a part for each stream") {
  const TensorsByName rows = plain_of("stream_init", {{"ranks", 3}});
  const auto parts = rows.at("weight").chunk(3);
  CHECK_FALSE(parts[0].equal(parts[1]));
  CHECK_FALSE(parts[1].equal(parts[2]));
  CHECK(rows.at("draw.weight").sizes().vec() == std::vector<int64_t>{3, 1, 5});
}

TEST_CASE("an uneven all-to-all moves every row once, and to somebody else than the even one") {
  const Options set = {{"mapping", "all_to_all_with_all_to_all_backward"},
                       {"ranks", 3},
                       {"shape", {8, 2}},
                       {"uneven", true}};
  const TensorsByName traded = plain_of("mapping", set);
  const at::Tensor &x = traded.at("x"), &y = traded.at("y");
  REQUIRE(y.sizes() == x.sizes());
  const auto sorted = [](const at::Tensor& t) { return std::get<0>(t.flatten().sort()); };
  CHECK(sorted(x).equal(sorted(y)));
  CHECK(y[0].slice(0, 0, 3).equal(x[0].slice(0, 0, 3)));  // 3 rows from rank 0
  CHECK(y[0].slice(0, 3, 5).equal(x[1].slice(0, 0, 2)));  // 2 from rank 1
  CHECK(y[0].slice(0, 5, 8).equal(x[2].slice(0, 0, 3)));  // 3 from rank 2
}

TEST_CASE("a dropout of 0 draws nothing and keeps all; one of 1 draws and keeps nothing") {
  for (const bool all : {false, true}) {
    const double p = all ? 1 : 0;
    const TensorsByName regions =
        plain_of("dropout_regions", {{"p", p}, {"tp_ranks", 2}, {"dp_ranks", 2}, {"tokens", 6}});
    for (const char* place : {"residual", "features", "tokens"}) {
      const at::Tensor x = regions.at(std::string(place) + "_in");
      CHECK(regions.at(place).equal(all ? at::zeros_like(x) : x));
    }
    CHECK(regions.at("draw.features").sizes().vec() == std::vector<int64_t>{2, all ? 1 : 0, 5});
    CHECK(regions.at("draw.tokens").sizes().vec() == std::vector<int64_t>{1, all ? 1 : 0, 5});
    CHECK(regions.at("draw.layer").sizes().vec() == std::vector<int64_t>{1, all ? 2 : 0, 5});
    const TensorsByName block = plain_of("checkpointed_block", {{"p", p}});
    CHECK(block.at("y").isfinite().all().item<bool>());
    CHECK(block.at("y").equal(block.at("x")) == all);
  }
}

TEST_CASE("options that would be passed over are named with what passes them over") {
  for (const char* mapping :
       {"copy_with_all_reduce_backward", "all_reduce_with_identity_backward"}) {
    const std::string said = bad_input_of("mapping", {{"mapping", mapping}, {"uneven", true}});
    CHECK(said.find(std::string("option uneven with mapping ") + mapping) != std::string::npos);
  }
  for (const char* mapping : {"hidden_to_sequence", "all_to_all_with_all_to_all_backward"}) {
    CHECK(bad_input_of("mapping", {{"mapping", mapping}, {"uneven", true}}).empty());
  }
  for (const char* name : {"fused", "runtime_gather"}) {
    const std::string said = bad_input_of("column_parallel_linear", {{name, "some"}});
    CHECK(said.find(std::string("option ") + name + " is 'some'") != std::string::npos);
  }
  for (const auto& [set, said] : std::vector<std::pair<Options, std::string>>{
           {{{"axis", "dp"}}, "option axis is 'dp'"}, {{{"ranks", 0}}, "option ranks is 0"}}) {
    CHECK(bad_input_of("stream_init", set).find(said) != std::string::npos);
  }
}

}  // namespace
}  // namespace shardproof::sim
