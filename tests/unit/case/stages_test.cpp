// The stages of a policy in a scenario, and the steps that follow from them.
#include <catch2/catch.hpp>

#include "sim/case/policy_stages.h"
#include "tests/unit/case/scenario/scenario_text.h"

using namespace shardproof::sim;

namespace {

std::string policy_text(const std::string& run, const std::string& rest = "") {
  return "name: x\nworkload: policy\ndata: {batch_size: 6}\n" + rest + "run: " + run + "\n";
}

CaseSpec policy_case(const std::string& run, const std::string& rest = "") {
  return only_case(policy_text(run, rest));
}

}  // namespace

TEST_CASE("A stage has what it says, else what run says", "[scenario][PW-2]") {
  const CaseSpec spec = policy_case(
      "{train_global_batch_size: 3, train_micro_batch_size: 1, logprob_batch_size: 4,\n"
      "  refit: {tensor_parallel_size: 3, budget_bytes: 77}, lives: 2,\n"
      "  generation: {temperature: 0.5, colocated: {enabled: true}}, stages: [{do: train},\n"
      "  {do: train, train_global_batch_size: 2, train_micro_batch_size: 2, eval_mode: true},\n"
      "  {do: score}, {do: reference, logprob_batch_size: 1}, {do: refit}, {do: save},\n"
      "  {do: load, tensor_parallel_size: 2, sequence_parallel: true, data_parallel: fsdp}]}",
      "parallel: {data_parallel_size: 2, context_parallel_size: 2}\n");
  REQUIRE(spec.stages.size() == 7);
  CHECK(spec.stages[0].global_batch_size == 3);
  CHECK(spec.stages[0].micro_batch_size == 1);
  CHECK_FALSE(spec.stages[0].eval_mode);
  CHECK(spec.stages[1].global_batch_size == 2);
  CHECK(spec.stages[1].micro_batch_size == 2);
  CHECK(spec.stages[1].eval_mode);
  CHECK(spec.stages[2].micro_batch_size == 4);
  CHECK(spec.stages[3].micro_batch_size == 1);
  CHECK(spec.stages[5].parallel.cp == 2);
  const ParallelSpec& loaded = spec.stages[6].parallel;
  CHECK(loaded.mesh() == shardproof::Mesh::training({.dp = 2, .tp = 2}));
  CHECK(loaded.sequence_parallel);
  CHECK(loaded.data_parallel == shardproof::DataParallelKind::kFsdp);
  CHECK(spec.parallel.data_parallel == shardproof::DataParallelKind::kReplicate);
  CHECK(spec.lives == 2);
  CHECK(spec.refit_bytes == 77);
  CHECK(spec.colocated);
  CHECK_FALSE(policy_case("{stages: [{do: train}]}").colocated);
  CHECK(spec.loss.temperature == 0.5);
  CHECK(spec.parallel.world_size() == 4 + 3);
  CHECK(spec.parallel.mesh().world_size() == 4);
  const CaseSpec there_and_back = case_spec_from_json(to_json(spec));
  CHECK(there_and_back.stages[6].parallel.tp == 2);
  CHECK(there_and_back.stages[1].eval_mode);
  CHECK(there_and_back.colocated);
}

TEST_CASE("A stage that fails has no moment and no step, an export a moment without a step",
          "[scenario][PW-2]") {
  const CaseSpec spec = policy_case(
      "{train_global_batch_size: 3, stages: [{do: train}, {do: train, fails: true},\n"
      "  {do: export, max_file_bytes: 9}, {do: train}]}");
  CHECK(moments_of(spec.stages[1], 6) == 0);
  CHECK(moments_of_life(spec) == 5);
  CHECK(stage_text(spec, 3) == "stage 3 (export)");
  CHECK(steps_behind(spec, 3) == std::vector<int64_t>{1, 2});
  CHECK(steps_behind(spec, 4) == std::vector<int64_t>{1, 2, 4});
  const CaseSpec there_and_back = case_spec_from_json(to_json(spec));
  CHECK(there_and_back.stages[1].fails);
  CHECK(there_and_back.stages[2].max_file_bytes == 9);
}

TEST_CASE("Moments are counted over stages and lives", "[scenario][PW-2]") {
  const CaseSpec spec = policy_case(
      "{train_global_batch_size: 3, lives: 2, stages: [{do: train}, {do: save}, {do: score},\n"
      "  {do: load, tensor_parallel_size: 2}, {do: train, train_global_batch_size: 6}]}",
      "parallel: {data_parallel_size: 2}\n");
  CHECK(moments_of_life(spec) == 5);
  CHECK(life_begin(spec, 5) == 1);
  CHECK(life_begin(spec, 6) == 6);
  CHECK(stage_text(spec, 2) == "stage 1 (train), life 1 of 2");
  CHECK(stage_text(spec, 3) == "stage 3 (score), life 1 of 2");
  CHECK(stage_text(spec, 9) == "stage 4 (load), life 2 of 2");
  CHECK(parallel_at(spec, 3).tp == 1);
  CHECK(parallel_at(spec, 4).tp == 2);
  CHECK(parallel_at(spec, 5).tp == 2);
  CHECK(parallel_at(spec, 6).tp == 1);
  CHECK(stage_text(spec, 11) == "stage 1 (train), life 3 of 2");  // such a step never occurs
  const CaseSpec trained = CaseSpec{};
  CHECK(life_begin(trained, 7) == 1);
  CHECK(stage_text(trained, 7) == "");
  CHECK(parallel_at(trained, 7).tp == 1);
}

TEST_CASE("A state comes from the steps before it, without those that a load gave up",
          "[scenario][PW-8]") {
  // Steps of one repetition: 1 2 train, 3 score, 4 5 eval, 6 train, 7 load, 8 9 train, 10 load, 11
  // train.
  const CaseSpec spec = policy_case(
      "{train_global_batch_size: 3, lives: 2, stages: [{do: train}, {do: score}, {do: save},\n"
      "  {do: train, eval_mode: true}, {do: train, train_global_batch_size: 6}, {do: load},\n"
      "  {do: train}, {do: load}, {do: train, train_global_batch_size: 6}]}");
  REQUIRE(moments_of_life(spec) == 11);
  using Steps = std::vector<int64_t>;
  CHECK(steps_behind(spec, 1) == Steps{1});
  CHECK(steps_behind(spec, 2) == Steps{1, 2});
  CHECK(steps_behind(spec, 3) == Steps{1, 2});
  CHECK(steps_behind(spec, 5) == Steps{1, 2});  // an evaluation adds nothing
  CHECK(steps_behind(spec, 6) == Steps{1, 2, 6});
  CHECK(steps_behind(spec, 7) == Steps{1, 2});
  CHECK(steps_behind(spec, 9) == Steps{1, 2, 8, 9});
  CHECK(steps_behind(spec, 10) == Steps{1, 2});
  CHECK(steps_behind(spec, 11) == Steps{1, 2, 11});
  CHECK(steps_behind(spec, 12) == Steps{12});  // the first of the next repetition
  CHECK(steps_behind(spec, 22) == Steps{12, 13, 22});
  CHECK(steps_behind(CaseSpec{}, 3) == Steps{1, 2, 3});
  CHECK(steps_behind(CaseSpec{}, 0).empty());

  CHECK(samples_at(spec, 2, 6) == 3);
  CHECK(samples_at(spec, 3, 6) == 6);
  CHECK(samples_at(spec, 17, 6) == 6);
  CHECK(samples_at(spec, 19, 6) == 3);
  CHECK(samples_at(CaseSpec{}, 1, 5) == 5);
}

TEST_CASE("The golden of a policy knows its stages, not its meshes", "[scenario]") {
  const auto key = [](const std::string& stages) {
    return golden_key(policy_case("{stages: [{do: train}, {do: save}, " + stages + "]}",
                                  "parallel: {data_parallel_size: 2}\n"));
  };
  CHECK(key("{do: load}") == key("{do: load, tensor_parallel_size: 2}"));
  CHECK(key("{do: load}, {do: train}") !=
        key("{do: load}, {do: train, train_global_batch_size: 3}"));
  CHECK(key("{do: train}") != key("{do: train, eval_mode: true}"));
  CHECK(key("{do: train, train_global_batch_size: 3}") !=
        key("{do: train, train_global_batch_size: 3, interrupted_after: 1}"));
  CHECK(key("{do: train}") == key("{do: train, train_micro_batch_size: 1}"));
  // Draws are an exception, because each stage and tp rank has draws of its own.
  CHECK(key("{do: load}, {do: draw}") != key("{do: load, tensor_parallel_size: 2}, {do: draw}"));
  CHECK(key("{do: load}, {do: draw}") !=
        key("{do: load, pipeline_parallel_size: 2, data_parallel_size: 1}, {do: draw}"));
}

TEST_CASE("What is wrong with stages is said where it stands", "[scenario][PW-1]") {
  const auto says = [](const std::string& run, const std::string& text) {
    check_refused({{policy_text(run), text}});
  };
  says("{}", "workload policy has no run.stages");
  says("{steps: 2, stages: [{do: train}]}", "workload policy has no run.steps");
  says("{stages: [{do: trian}]}", "did you mean train?");
  says("{stages: [train]}", "must be a map");
  says("{stages: [{eval_mode: true}]}", "has no do");
  says("{stages: [{do: score, eval_mode: true}]}", "stage 1: score has no eval_mode");
  says("{stages: [{do: train, tensor_parallel_size: 2}]}", "train has no tensor_parallel_size");
  says("{stages: [{do: refit, fails: true}]}", "stage 1: refit has no fails");
  says("{stages: [{do: save, fails: true}, {do: load}]}", "stage 2: there is nothing to load yet");
  says("{stages: [{do: save}, {do: load, fails: true, data_parallel: fsdp}]}",
       "stage 2: a load that fails stays on its mesh");
  says("{stages: [{do: train, train_global_batch_size: 3, interrupted_after: 2}]}",
       "stage 1: no global batch is left of 2 after 2");
  says("{stages: [{do: train, train_global_batch_size: 3, interrupted_after: 1, fails: true}]}",
       "stage 1: interrupted_after is of stages that train on what remains");
  says("{stages: [{do: save, max_file_bytes: 9}]}", "stage 1: save has no max_file_bytes");
  says("{stages: [{do: train, fails: true, eval_mode: true}]}",
       "stage 1: an evaluation is not to fail");
  says("{stages: [{do: train, train_global_batch_size: 4}]}",
       "stage 1: 6 samples do not divide into global batches of 4");
  says("{stages: [{do: train}, {do: load}]}", "stage 2: there is nothing to load yet");
  says("{stages: [{do: save}, {do: load, sequence_parallel: true}]}",
       "stage 2: sequence_parallel of a load goes with the sizes of its mesh");
  says("{stages: [{do: save}, {do: load, tensor_parallel_size: 2}]}",
       "the mesh tp=2 has 2 ranks, the one before 1");
  says("{stages: [{do: refit}]}", "there are no inference ranks to refit");
  check_refused({{"run: {stages: [{do: train}]}\n", "workload train has no run.stages"},
                 {"run: {lives: 2}\n", "workload train has no run.lives"}});
}
