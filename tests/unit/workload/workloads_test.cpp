// The registry of workloads, and the draws of their inputs.
#include "sim/workload/workloads.h"

#include <catch2/catch.hpp>

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
  for (const char* name : {"column_parallel_linear", "row_parallel_linear", "accumulated_linear",
                           "vocab_parallel_embedding", "mapping"}) {
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

}  // namespace
}  // namespace shardproof::sim
