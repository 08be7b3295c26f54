// Options of a case that change nothing in it, and those that do.
#include "sim/case/idle_options.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/unit/case/scenario/scenario_text.h"

using namespace shardproof;
using namespace shardproof::sim;

namespace {

using Sentences = std::vector<std::string>;

Sentences idle(const std::string& text, const WorldChoice& world = {}) {
  return idle_options(only_case(text, world));
}

WorldChoice with_layer() { return {.workloads = {{.name = "layer", .about = "", .options = {}}}}; }

// The sentence about each of these settings, which all lack the same.
Sentences each_idle(const Sentences& settings, const std::string& lack) {
  Sentences all;
  for (const std::string& one : settings)
    all.push_back(one + ", but " + lack + ": it has no effect");
  return all;
}

}  // namespace

TEST_CASE("Links between nodes have no effect on one node", "[idle]") {
  const std::string links = "inter_node: {latency_us: 5, gb_per_s: 2, per_node: true}";
  const Sentences all_idle = each_idle(
      {"world.links.inter_node.latency_us is 5.0", "world.links.inter_node.gb_per_s is 2.0",
       "world.links.inter_node.per_node is true"},
      "world.nodes is 1");
  // Four ranks; by either key.
  const auto on = [&](const std::string& nodes) {
    return idle("parallel: {tensor_parallel_size: 4}\nworld: {" + nodes + "links: {" + links +
                "}}\n");
  };
  CHECK(on("") == all_idle);
  CHECK(on("nodes: 1, ") == all_idle);
  CHECK(on("ranks_per_node: 4, ") == all_idle);
  CHECK(on("nodes: 2, ").empty());
  CHECK(on("ranks_per_node: 2, ").empty());
  CHECK(on("ranks_per_node: 1, ").empty());
}

TEST_CASE("A straggler's factor on links has no effect where none takes time", "[idle]") {
  const auto on = [](const std::string& world) {
    return idle("parallel: {tensor_parallel_size: 4}\nworld: {" + world +
                "stragglers: [{rank: 1, compute: 3}, {rank: 2, links: 50}]}\n");
  };
  const Sentences links_idle = {
      "world.stragglers[1].links is 50.0, but no link of world.links takes time: it has no effect"};
  CHECK(on("") == links_idle);
  CHECK(on("nodes: 2, ") == links_idle);
  CHECK(on("links: {in_node: {latency_us: 1}}, ").empty());
  CHECK(on("links: {in_node: {gb_per_s: 1}}, ").empty());
  CHECK(on("nodes: 2, links: {inter_node: {latency_us: 1}}, ").empty());
  CHECK(
      on("links: {inter_node: {latency_us: 1}}, ") ==
      Sentences{"world.links.inter_node.latency_us is 1.0, but world.nodes is 1: it has no effect",
                links_idle.front()});
}

TEST_CASE("Keys of another world have no effect where a scenario has one backend", "[idle]") {
  const auto on = [](Backend backend, const std::string& only, const std::string& keys) {
    return idle("parallel: {tensor_parallel_size: 4}\nworld: {backend: " + only + ", nodes: 2, " +
                    keys + "}\n",
                {.backend = backend});
  };
  const std::string of_emulated =
      "strict: false, schedule: 5, compute: fixed, compute_cost: {op_us: 3}, "
      "links: {in_node: {latency_us: 5, gb_per_s: 2}}, stragglers: [{rank: 1, compute: 5}]";
  const Sentences of_gloo =
      each_idle({"world.strict is false", "world.schedule is 5",
                 "world.links.in_node.latency_us is 5.0", "world.links.in_node.gb_per_s is 2.0",
                 "world.compute is fixed", "world.compute_cost.op_us is 3.0",
                 R"(world.stragglers is [{"compute":5.0,"links":1.0,"rank":1}])"},
                "world.backend is gloo");
  CHECK(on(Backend::kGloo, "gloo", of_emulated) == of_gloo);
  CHECK(on(Backend::kEmulated, "emulated", of_emulated).empty());
  CHECK(on(Backend::kGloo, "[gloo, emulated]", of_emulated).empty());
  const std::string loss = "links: {inter_node: {loss: 0.3, latency_us: 5, gb_per_s: 2}}";
  CHECK(on(Backend::kEmulated, "emulated", loss) ==
        Sentences{"world.links.inter_node.loss is 0.3, but world.backend is emulated: it has no "
                  "effect"});
  CHECK(on(Backend::kGloo, "gloo", loss).empty());
  CHECK(on(Backend::kEmulated, "[gloo, emulated]", loss).empty());
  CHECK(on(Backend::kNccl, "nccl", loss) ==
        each_idle({"world.nodes is 2", "world.links.inter_node.latency_us is 5.0",
                   "world.links.inter_node.gb_per_s is 2.0", "world.links.inter_node.loss is 0.3"},
                  "world.backend is nccl"));
  CHECK(on(Backend::kNccl, "[nccl, gloo]", loss).empty());
}

TEST_CASE("Of several ways to an effect the nearest says what is lacking", "[idle]") {
  const auto group_on = [](const std::string& pp) {
    return idle("parallel: {pipeline_parallel_size: 2, pp: {group: 48, " + pp +
                "}}\nmodel: {num_hidden_layers: 4}\n");
  };
  const Sentences one_chunk = each_idle({"parallel.pp.group is 48"}, "parallel.pp.chunks is 1");
  CHECK(group_on("schedule: zb1p") == one_chunk);
  CHECK(group_on("schedule: zb1p, chunks: 2").empty());
  CHECK(group_on("schedule: gpipe") ==
        each_idle({"parallel.pp.group is 48"}, "parallel.pp.schedule is gpipe"));
  // The stage is there, and its mesh lacks tp.
  CHECK(idle("workload: policy\nparallel: {tp: {async_grad: true}}\n"
             "run: {stages: [{do: train}]}\n") ==
        each_idle({"parallel.tp.async_grad is true"}, "parallel.tensor_parallel_size is 1"));
  CHECK(idle("workload: policy\nparallel: {tp: {async_grad: true}}\n"
             "run: {stages: [{do: score}]}\n") ==
        each_idle({"parallel.tp.async_grad is true"}, "no stage of run.stages does train"));
}

TEST_CASE("Parameters that tp copies count once without tp", "[idle]") {
  const std::string counts = "run: {grad_norm: {counts: each_of_tp}}\n";
  CHECK(idle(counts) ==
        each_idle({"run.grad_norm.counts is each_of_tp"}, "parallel.tensor_parallel_size is 1"));
  CHECK(idle("parallel: {tensor_parallel_size: 2}\n" + counts).empty());
}

TEST_CASE("A registered workload takes nothing of parallel but the mesh", "[idle]") {
  const std::string mesh =
      "workload: layer\nparallel: {tensor_parallel_size: 2, "
      "data_parallel_size: 2, expert_parallel_size: 2";
  CHECK(idle(mesh + "}\n", with_layer()).empty());
  CHECK(idle(mesh + ", sequence_parallel: true, data_parallel: fsdp, fsdp: {prefetch: false}, "
                    "activation_checkpointing: layer, context_layout: contiguous, "
                    "custom_parallel_plan: {a: Replicate}}\n",
             with_layer())
            .size() == 6);
  CHECK(
      idle(mesh + ", data_parallel: fsdp}\nworld: {compute: fixed, compute_cost: {factor: 3}}\n",
           with_layer()) ==
      Sentences{"parallel.data_parallel is fsdp, but workload is layer: it has no effect",
                "world.compute_cost.factor is 3.0, but world.compute is fixed: it has no effect"});
  // A model takes it.
  CHECK(idle("parallel: {data_parallel_size: 2, data_parallel: fsdp}\n").empty());
}
