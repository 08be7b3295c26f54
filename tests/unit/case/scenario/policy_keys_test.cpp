// A scenario accepts the keys of NeMo-RL's policy configuration.
#include <catch2/catch.hpp>

#include "tests/unit/case/scenario/scenario_text.h"

using namespace shardproof;
using namespace shardproof::sim;

namespace {

std::string optimizer(const std::string& name, const std::string& kwargs) {
  return "run: {optimizer: {name: torch.optim." + name + ", kwargs: {" + kwargs + "}}}";
}

}  // namespace

TEST_CASE("A whole policy configuration, under its own names", "[scenario][PW-12]") {
  const CaseSpec spec = only_case(R"(workload: policy
precision: bfloat16
parallel: {tensor_parallel_size: 2, context_parallel_size: 1, cpu_offload: true,
           data_parallel: fsdp, sequence_parallel: false, activation_checkpointing: true,
           custom_parallel_plan: null}
run:
  train_global_batch_size: 4
  train_micro_batch_size: 1
  logprob_batch_size: 2
  max_grad_norm: 1.0
  generation: {temperature: 0.7, colocated: {enabled: true}}
  dynamic_batching: {enabled: false, train_mb_tokens: 4096, logprob_mb_tokens: 8192,
                     sequence_length_round: 64}
  sequence_packing: {enabled: false, train_mb_tokens: 4096}
  optimizer:
    name: "torch.optim.AdamW"
    kwargs: {lr: 5.0e-6, weight_decay: 0.01, betas: [0.9, 0.999], eps: 1e-8, foreach: False,
             fused: False}
  scheduler:
    - {name: "torch.optim.lr_scheduler.LinearLR",
       kwargs: {start_factor: 0.1, end_factor: 1.0, total_iters: 50}}
    - {name: "torch.optim.lr_scheduler.ConstantLR",
       kwargs: {factor: 1.0, total_iters: 10000000000}}
    - {milestones: [50]}
  stages: [{do: train}])");
  CHECK(spec.parallel.activation_checkpointing == CheckpointedRegions::kMlp);
  CHECK(spec.parallel.fsdp.cpu_offload);
  CHECK(spec.parallel.custom_plan.is_null());
  CHECK(spec.loss.temperature == 0.7);
  CHECK(spec.colocated);
  CHECK(spec.optimizer.lr == 5.0e-6);
  CHECK(spec.optimizer.schedulers[1].total_iters == 10000000000);
}

TEST_CASE("Activation checkpointing is true, false or a name", "[scenario][PW-12]") {
  const auto chosen = [](const std::string& value) {
    return only_case("parallel: {activation_checkpointing: " + value + "}")
        .parallel.activation_checkpointing;
  };
  CHECK(chosen("true") == CheckpointedRegions::kMlp);
  CHECK(chosen("false") == CheckpointedRegions::kNone);
  CHECK(chosen("layer") == CheckpointedRegions::kLayer);
  check_refused({{"parallel: {activation_checkpointing: 1}\n", "it must be a name"},
                 {"run: {loss: {kind: true}}\n", "it must be a name"}});
}

TEST_CASE("first values from own streams, and fused norms, are refused where they cannot be") {
  const std::string own = "model: {init: own_stream}\n";
  check_refused(
      {{own + "workload: policy\nrun: {stages: [{do: score}]}\n",
        "may change tp, on which weights of own streams depend"},
       {own + "parallel: {custom_parallel_plan: {lm_head: Replicate}}\n",
        "does not know what a custom plan cuts"},
       {own + "reference: {mesh: {tp: 2}}\n", "so it cannot be the reference"},
       {"model: {init: own_stream, folder: ../../smoke}\n", "model.folder are both given"},
       {"run: {scoring: {fused_norm: true}}\n", "workload train needs gradients"}});
}

TEST_CASE("Temperature has two names, and one value", "[scenario][PW-12]") {
  CHECK(only_case("run: {generation: {temperature: 0.5}}").loss.temperature == 0.5);
  CHECK(only_case("run: {temperature: 0.5}").loss.temperature == 0.5);
  // So it is beside a case folder, which has a loss but no temperature.
  const std::string folder = "data: {case: ../golden/hf/llama_bias}\n";
  CHECK(only_case(folder + "run: {temperature: 0.5}").loss.temperature == 0.5);
  CHECK(only_case(folder).loss.temperature == 1);
  CHECK_THAT(refusal_of("run: {temperature: 1, generation: {temperature: 1}}\n"),
             Catch::Contains("run.temperature and run.generation.temperature are both given"));
}

TEST_CASE("foreach and fused leave the optimizer what it is", "[scenario][PW-12]") {
  for (const std::string name : {"AdamW", "SGD"}) {
    const auto plain = to_json(only_case(optimizer(name, "lr: 0.1")))["optimizer"];
    for (const std::string ways :
         {"foreach: false, fused: false", "foreach: true", "fused: true", "foreach: null",
          "fused: true, foreach: false", "fused: true, foreach: null", "maximize: false",
          "differentiable: false"}) {
      INFO(name << " " << ways);
      CHECK(to_json(only_case(optimizer(name, "lr: 0.1, " + ways)))["optimizer"] == plain);
    }
  }
  CHECK(refusal_of(optimizer("AdamW", "amsgrad: false, capturable: false")) == "accepted");
  check_refused(
      {{optimizer("AdamW", "foreach: true, fused: true"), "foreach and fused are both true"},
       {optimizer("AdamW", "foreach: 1"), "must be true or false"}});
  for (const std::string way : {"amsgrad", "maximize", "capturable", "differentiable"}) {
    check_refused({{optimizer("AdamW", way + ": true"), way + " is true; no step here has it"},
                   {optimizer("AdamW", way + ": null"), "has no value"}});
  }
}

TEST_CASE("An optimizer takes its own constants", "[scenario][PW-12]") {
  const OptimizerSpec damped =
      only_case(optimizer("SGD", "momentum: 0.9, dampening: 0.25")).optimizer;
  CHECK(damped.dampening == 0.25);
  CHECK_FALSE(damped.nesterov);
  const CaseSpec ahead = only_case(optimizer("SGD", "momentum: 0.9, nesterov: true"));
  CHECK(case_spec_from_json(to_json(ahead)).optimizer.nesterov);
  CHECK(golden_key(ahead) != golden_key(only_case(optimizer("SGD", "momentum: 0.9"))));
  check_refused(
      {{optimizer("SGD", "nesterov: true"), "it needs a momentum above 0 and no dampening"},
       {optimizer("SGD", "momentum: 0.9, dampening: 0.1, nesterov: true"),
        "momentum 0.9 and dampening 0.1"},
       {optimizer("SGD", "betas: [0.9, 0.99]"), "SGD has no betas"},
       {optimizer("AdamW", "momentum: 0.9"), "AdamW has no momentum"},
       {optimizer("AdamW", "forech: true"), "kwargs.foreach?"}});
}

TEST_CASE("The policy configuration's other names are known", "[scenario][PW-12]") {
  check_refused({{"dtensor_cfg: {tensor_parallel_size: 2}\n",
                  "unknown key 'dtensor_cfg'; did you mean parallel?"},
                 {"model_name: x\n", "did you mean model.folder?"},
                 {"policy: {precision: float32}\n", "did you mean run?"}});
}

TEST_CASE("Other frameworks' names of the sizes of a mesh are known in every place of a key",
          "[scenario]") {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"tensor_model_parallel_size", "parallel.tensor_parallel_size"},
      {"pipeline_model_parallel_size", "parallel.pipeline_parallel_size"},
      {"virtual_pipeline_model_parallel_size", "parallel.pp.chunks"},
      {"context_parallel_size", "parallel.context_parallel_size"},
      {"expert_model_parallel_size", "parallel.expert_parallel_size"},
      {"expert_tensor_parallel_size", "parallel.expert_tensor_parallel_size"},
      {"data_parallel_replicate_degree", "parallel.replicate_size"},
      {"data_parallel_shard_degree", "parallel.data_parallel_size"},
      {"tensor_parallel_degree", "parallel.tensor_parallel_size"},
      {"pipeline_parallel_degree", "parallel.pipeline_parallel_size"},
      {"context_parallel_degree", "parallel.context_parallel_size"},
      {"expert_parallel_degree", "parallel.expert_parallel_size"},
      {"expert_tensor_parallel_degree", "parallel.expert_tensor_parallel_size"},
      {"ulysses_sequence_parallel_size", "parallel.ulysses_size"},
      {"tensor_parallel_size", "parallel.tensor_parallel_size"},
      {"expert_parallel_size", "parallel.expert_parallel_size"},
      {"ep", "parallel.expert_parallel_size"},
      {"etp", "parallel.expert_tensor_parallel_size"},
      {"tp", "parallel.tensor_parallel_size"}};
  for (const auto& [name, path] : names) {
    const std::string meant = "did you mean " + path + "?";
    check_refused({{name + ": 2\n", meant},
                   {"run: {" + name + ": 2}\n", meant},
                   {"megatron." + name + ": 2\n", meant},
                   {"matrix: {" + name + ": [1, 2]}\n", meant},
                   {"skip: {reason: x, when: {" + name + ": 2}}\n", meant}});
    if (path == "parallel." + name || name == "tp") continue;  // a key or a block there
    check_refused({{"parallel: {" + name + ": 2}\n", meant}});
  }
  check_refused({{"parallelism: {tensor_parallel_degree: 2}\n", "did you mean parallel?"},
                 {"megatron_cfg: {expert_model_parallel_size: 2}\n", "did you mean parallel?"},
                 {"reference: {tp: 2}\n", "did you mean reference.mesh.tp?"}});
}
