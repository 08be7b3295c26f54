// The registry of workloads, and the draws of their inputs.
#include "sim/uses/proofs/workloads.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

#include "sim/uses/proofs/built_in_rows.h"
#include "tests/support/said_by.h"

namespace shardproof::sim::proofs {
namespace {

Workload named(const std::string& name) {
  return {
      .name = name,
      .inputs = [](Draw&, const Options&) { return WorkloadTensors(); },
      .plain = [](const TensorsByName&, const Options&) { return WorkloadTensors(); },
      .sharded = [](const TensorsByName&, MeshComm&, const Options&) { return WorkloadTensors(); }};
}

bool takes(Workloads& workloads, Workload workload) {
  const std::string said = tests::said_by([&] { workloads.add(std::move(workload)); });
  CHECK((said.empty() || said.starts_with("bad input: ")));
  return said.empty();
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

TEST_CASE("a workload without one of its functions, or with two options of a name, is refused") {
  Workloads workloads;
  for (int part = 0; part < 4; ++part) {
    Workload workload = named("w");
    if (part == 0) workload.inputs = nullptr;
    if (part == 1) workload.plain = nullptr;
    if (part == 2) workload.sharded = nullptr;
    if (part == 3) workload.options = {{"size", 3}, {"size", 4}};
    CHECK_FALSE(takes(workloads, workload));
  }
  const WorkloadOptions rows[] = {
      {{"a", 3, "", CutOver{"tensor"}}},      {{"a", 3, "", CutOver{"tp", "b"}}},
      {{"a", 3, "", CountsRanks{"tp", "b"}}}, {{"a", 3, "", NotBeside{3, "b"}}},
      {{"a", 3, "", Choices{{"x"}}}},         {{"a", 3, "", Range{4, 5}}},
      {{"a", "z", "", Choices{{"x", "y"}}}}};
  for (const WorkloadOptions& options : rows) {
    Workload workload = named("w");
    workload.options = options;
    CHECK_FALSE(takes(workloads, workload));
  }
  CHECK(workloads.empty());
  Workload with_notes = named("w");
  with_notes.sharded = nullptr;
  with_notes.sharded_with_notes = [](const TensorsByName&, MeshComm&, const Options&,
                                     WorkloadNotes&) { return WorkloadTensors(); };
  CHECK(takes(workloads, with_notes));
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

// The error of a built-in workload's plain side with the options `set`; "" without one.
std::string bad_input_of(const std::string& name, const Options& set) {
  const Workloads workloads = built_in_workloads();
  const Workload& workload = *workloads.find(name);
  Draw draw(3);
  TensorsByName full;
  return tests::told_by(ErrorKind::kBadInput, [&] {
    const Options options = checked_options(
        {.name = name, .about = "", .options = workload.options}, set, throw_bad_input);
    for (const WorkloadTensor& input : workload.inputs(draw, options)) {
      full[input.name] = input.tensor;
    }
    workload.plain(full, options);
  });
}

TEST_CASE("options that count no ranks, or cut no whole samples, are told from the plain side") {
  using Catch::Matchers::Contains;
  for (const char* name : {"dropout_regions", "checkpointed_block"}) {
    INFO(name);
    for (const std::string ranks : {"dp_ranks", "tp_ranks"}) {
      for (const int64_t count : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
        CHECK_THAT(bad_input_of(name, {{ranks, count}}),
                   Contains("option " + ranks + " is " + std::to_string(count)));
      }
    }
    CHECK_THAT(bad_input_of(name, {{"samples", 5}, {"dp_ranks", 2}}),
               Contains("size 5, which does not divide by dp_ranks 2"));
    const bool block = name == std::string("checkpointed_block");
    CHECK_THAT(bad_input_of(name, {{block ? "hidden" : "width", 7}, {"tp_ranks", 2}}),
               Contains("size 7, which does not divide by tp_ranks 2"));
  }
  const char* const all_to_all = "all_to_all_with_all_to_all_backward";
  for (const char* mapping :
       {all_to_all, "copy_with_all_reduce_backward", "slice_with_all_gather_backward"}) {
    for (const int64_t count : {0, -2}) {
      CHECK_THAT(bad_input_of("mapping", {{"mapping", mapping}, {"ranks", count}}),
                 Contains("option ranks is " + std::to_string(count)));
    }
  }
  CHECK_THAT(bad_input_of("mapping", {{"ranks", 2}, {"shape", {5, 3}}, {"mapping", all_to_all}}),
             Contains("shape is [5, 3], whose first dim 2 ranks cannot trade"));
  CHECK_THAT(bad_input_of("refit", {{"data_parallel", "hybrid"}, {"trainer_dp", 3}}),
             Contains("trainer_dp is 3; give a multiple of 2"));
}

TEST_CASE(
    "each mapping that an option names is a function, and each workload has the common option") {
  for (const KnownWorkload& workload : built_in_rows()) {
    INFO(workload.name);
    CHECK(workload.options.back().path == kStridedInputs);
    for (const WorkloadOption& option : workload.options) CHECK_FALSE(option.doc.empty());
    if (workload.name != "mapping") continue;
    for (const std::string& name : workload.options.front().choices) {
      const bool rows = name.find("hidden") != std::string::npos;
      const Options shape = rows ? Options{4, 6} : Options{4, 2, 6};
      CHECK(bad_input_of("mapping", {{"mapping", name}, {"shape", shape}}).empty());
    }
  }
}

TEST_CASE("options that are no choice, or would be passed over, are named with what refuses them") {
  struct Row {
    const char* workload;
    Options set;
    const char* said;
  };
  for (const Row& row : std::vector<Row>{
           {"mapping",
            {{"mapping", "copy_with_all_reduce_backward"}, {"uneven", true}},
            "option uneven with mapping copy_with_all_reduce_backward"},
           {"mapping",
            {{"mapping", "all_reduce_with_identity_backward"}, {"uneven", true}},
            "option uneven with mapping all_reduce_with_identity_backward"},
           {"mapping",
            {{"mapping", "sequence_to_hidden"}, {"shape", {4, 5, 2}}},
            "takes [tokens, hidden]"},
           {"mapping",
            {{"mapping", "slice_with_all_gather_backward"}, {"dim", 2}},
            "option dim is 2, but option shape has 2 dims"},
           {"column_parallel_linear", {{"fused", "some"}}, "option fused is 'some'"},
           {"column_parallel_linear",
            {{"runtime_gather", "some"}},
            "option runtime_gather is 'some'"},
           {"mapping", {{"dim", 77}}, "option dim is 77, but option shape has 2 dims"},
           {"checkpointed_block", {{"block", "none"}}, "option block is 'none'"},
           {"checkpointed_block",
            {{"norm", "without-output"}},
            "option norm is 'without-output'; known are plain, checkpoint, without_output"},
           {"dropout_regions", {{"wrong_stream", "feature"}}, "option wrong_stream is 'feature'"},
           {"refit", {{"path", "none"}}, "option path is 'none'"},
           {"refit", {{"data_parallel", "ddp"}}, "option data_parallel is 'ddp'"},
           {"refit", {{"family", "mixtral"}}, "option family is 'mixtral'"},
           {"refit", {{"replicas", 0}}, "option replicas is 0"},
           {"column_parallel_linear",
            {{"samples", 10000000}, {"tokens", 10000000}},
            "the options give an input the shape [10000000,10000000,5], which takes"},
           {"stream_init", {{"axis", "dp"}}, "option axis is 'dp'"},
           {"stream_init", {{"ranks", 0}}, "option ranks is 0"}}) {
    CHECK_THAT(bad_input_of(row.workload, row.set), Catch::Contains(row.said));
  }
}

}  // namespace
}  // namespace shardproof::sim::proofs
