// A decoder under tensor parallelism against the same decoder on one device: logprobs, every
// gradient, and all observations that the slots' declared layouts allow.
#include <catch2/catch.hpp>

#include "logprob/vocab_parallel_logprob.h"
#include "model/decoder.h"
#include "parallel/style/gradient_rules.h"
#include "parallel/tp/style.h"
#include "tensor/shard.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests::tp_decoder_test {
namespace {

// Where uneven parts are supported (vocabulary, MLP), 2, 3 or 4 do not divide the sizes.
ModelConfig small_llama() {
  ModelConfig config;
  config.vocab_size = 37;
  config.hidden_size = 10;
  config.intermediate_size = 14;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 12;
  config.num_key_value_heads = 12;
  config.head_dim = 4;
  config.attention_bias = true;
  config.mlp_bias = true;
  return config;
}

// The observations of a run by name; a tensor that is observed twice is an error of the test.
struct Seen {
  Observation observation;
  at::Tensor tensor;
};
class Recorder final : public Probe {
 public:
  bool listens(Phase) const override { return true; }
  void observe(const Observation& observation) override {
    if (!seen.emplace(observation.name, Seen{observation, observation.tensor.detach().clone()})
             .second) {
      throw std::logic_error(observation.name + " was observed twice");
    }
  }
  std::map<std::string, Seen> seen;
};

struct Run {
  Recorder recorder;
  std::map<std::string, at::Tensor> grads;
  std::vector<ParameterPtr> parameters;
  at::Tensor logprobs;
};

constexpr int64_t kSamples = 2, kTokens = 12;

at::Tensor input_ids(int64_t vocab_size) {
  return ((at::arange(kSamples * kTokens, at::kLong) * 11 + 3) % vocab_size)
      .view({kSamples, kTokens});
}

struct Trial {
  ModelConfig config = small_llama();
  Mesh mesh = Mesh::training({.tp = 2});
  TensorParallelOptions options = {};
  std::vector<std::string> frozen = {};
  at::ScalarType dtype = at::kDouble;
};

void freeze(Decoder& model, const std::vector<std::string>& names) {
  for (const ParameterPtr& parameter : model.parameters()) {
    for (const std::string& name : names) {
      if (parameter->name == name) parameter->trainable = false;
    }
  }
}

StepContext context_of(Run& run) {
  return {.probe = run.recorder,
          .step = 1,
          .positions = at::arange(kTokens, at::kLong).unsqueeze(0).expand({kSamples, kTokens})};
}

void backward(Run& run) {
  const at::Tensor weights = random_tensor({kSamples, kTokens}, 77);
  (run.logprobs * weights.to(run.logprobs.scalar_type())).sum().backward();
}

void keep_gradients(Run& run, Decoder& model) {
  run.parameters = model.parameters();
  for (const ParameterPtr& parameter : run.parameters) {
    if (parameter->tensor.grad().defined()) run.grads[parameter->name] = parameter->tensor.grad();
  }
  run.logprobs = run.logprobs.detach();
}

std::unique_ptr<Run> run_golden(const Trial& trial, std::shared_ptr<const WeightMap> weights) {
  auto run = std::make_unique<Run>();
  Decoder model(trial.config, weights);
  freeze(model, trial.frozen);
  model.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  const at::Tensor ids = input_ids(trial.config.vocab_size);
  const at::Tensor logits = model.forward(ids, context_of(*run));
  const at::Tensor scored = at::log_softmax(logits.narrow(1, 0, kTokens - 1), -1)
                                .gather(-1, ids.narrow(1, 1, kTokens - 1).unsqueeze(-1))
                                .squeeze(-1);
  run->logprobs = at::cat({at::zeros({kSamples, 1}, at::kDouble), scored}, 1);
  backward(*run);
  keep_gradients(*run, model);
  return run;
}

// Finishes the parameters' gradients after the last microbatch.
void finish_gradients(const Decoder& model, MeshComm& comm) {
  std::vector<ParameterPtr> trained;
  std::vector<at::Tensor> grads;
  for (const ParameterPtr& parameter : model.parameters()) {
    const at::Tensor& grad = parameter->tensor.grad();
    if (!parameter->trainable) continue;
    trained.push_back(parameter);
    grads.push_back(grad.defined() ? grad : at::zeros_like(parameter->tensor));
  }
  apply_gradient_rules(trained, grads, comm);
  for (size_t i = 0; i < grads.size(); ++i) trained[i]->tensor.mutable_grad() = grads[i];
}

void run_rank(const Trial& trial, std::shared_ptr<const WeightMap> weights, MeshComm& comm,
              int64_t rank, Run& run) {
  Decoder model(trial.config, weights);
  freeze(model, trial.frozen);
  const TensorParallel style(trial.options);
  style.place(model, trial.mesh);
  style.install(model, comm);
  model.materialise(trial.mesh, rank, trial.dtype, at::kCPU);
  const at::Tensor ids = input_ids(trial.config.vocab_size);
  const at::Tensor logits = model.forward(ids, context_of(run));
  run.logprobs = next_token_logprobs(logits, ids, comm.along("tp"), trial.config.vocab_size);
  backward(run);
  finish_gradients(model, comm);
  keep_gradients(run, model);
}

double largest(const std::map<std::string, at::Tensor>& tensors) {
  double value = 0;
  for (const auto& [name, tensor] : tensors) {
    value = std::max(value, tensor.abs().max().item<double>());
  }
  return value;
}

// Allows 1e-12 of a tensor's scale, or the rounding of its phase if the tensor is zero by algebra.
std::string differs(const at::Tensor& golden, const at::Tensor& actual, double phase_scale) {
  return difference(golden, actual, 1e-12, 1e-2 * phase_scale);
}

void check_gradients(const Trial& trial, const Run& golden, const Run& actual, int64_t rank) {
  const double scale = largest(golden.grads);
  CHECK(actual.grads.size() == golden.grads.size());
  for (const ParameterPtr& parameter : actual.parameters) {
    INFO("gradient of " << parameter->name << " on rank " << rank);
    if (!parameter->trainable) continue;
    REQUIRE(actual.grads.count(parameter->name) == 1);
    const at::Tensor own =
        cut(golden.grads.at(parameter->name), parameter->layout, trial.mesh, rank);
    CHECK(differs(own, actual.grads.at(parameter->name), scale) == "");
  }
}

// The tensor that the ranks' addends sum to, each placed by its layout.
at::Tensor summed(const std::vector<std::unique_ptr<Run>>& runs, const std::string& name,
                  const std::vector<int64_t>& global_shape, const Trial& trial, int64_t rank) {
  at::Tensor sum = at::zeros(global_shape, at::kDouble);
  for (const int64_t peer : trial.mesh.peers_along("tp", rank)) {
    const Seen& seen = runs[static_cast<size_t>(peer)]->recorder.seen.at(name);
    REQUIRE(seen.observation.layout.cuts().size() == 1);
    const int64_t dim = seen.observation.layout.cuts()[0].dim;
    const auto indices = seen.observation.layout.indices(
        dim, global_shape[static_cast<size_t>(dim)], trial.mesh, peer);
    sum.index_add_(dim, at::tensor(indices, at::kLong), seen.tensor);
  }
  return sum;
}

void check_observations(const Trial& trial, const Run& golden,
                        const std::vector<std::unique_ptr<Run>>& runs, int64_t rank) {
  const auto& seen_here = runs[static_cast<size_t>(rank)]->recorder.seen;
  CHECK(seen_here.size() == golden.recorder.seen.size());
  for (const auto& [name, want] : golden.recorder.seen) {
    INFO(name << " on rank " << rank);
    REQUIRE(seen_here.count(name) == 1);
    const Seen& seen = seen_here.at(name);
    if (seen.observation.part == Part::kPartial) {
      CHECK(differs(want.tensor, summed(runs, name, want.tensor.sizes().vec(), trial, rank), 1) ==
            "");
    } else {
      CHECK(differs(cut(want.tensor, seen.observation.layout, trial.mesh, rank), seen.tensor, 1) ==
            "");
    }
  }
}

std::vector<std::unique_ptr<Run>> run_ranks(const Trial& trial,
                                            const std::shared_ptr<const WeightMap>& weights) {
  std::vector<std::unique_ptr<Run>> runs;
  for (int64_t rank = 0; rank < trial.mesh.world_size(); ++rank) {
    runs.push_back(std::make_unique<Run>());
  }
  run_emulated_ranks(trial.mesh, [&](MeshComm& comm, int64_t rank) {
    run_rank(trial, weights, comm, rank, *runs[static_cast<size_t>(rank)]);
  });
  return runs;
}

void check_trial(const Trial& trial) {
  INFO(trial.mesh.describe() << (trial.options.sequence_parallel ? " SP" : "") << " heads "
                             << trial.config.num_attention_heads << "/"
                             << trial.config.num_key_value_heads << " plan "
                             << trial.options.custom_plan.dump());
  const auto weights = seeded_weights(trial.config, 5);
  const auto golden = run_golden(trial, weights);
  const auto runs = run_ranks(trial, weights);
  for (int64_t rank = 0; rank < trial.mesh.world_size(); ++rank) {
    const Run& run = *runs[static_cast<size_t>(rank)];
    CHECK(difference(golden->logprobs, run.logprobs) == "");
    check_gradients(trial, *golden, run, rank);
    check_observations(trial, *golden, runs, rank);
  }
}

Trial trial_on(int64_t tp, bool sp) {
  Trial trial;
  trial.mesh = Mesh::training({.tp = tp});
  trial.options.sequence_parallel = sp;
  return trial;
}

TEST_CASE(
    "a decoder over tp 1, 2, 3, 4, with and without sequence parallel: padded vocabulary, uneven "
    "MLP, all biases",
    "[tp][MP-1][TP-1][TP-2][TP-3][SH-2]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const bool sp : {false, true}) check_trial(trial_on(tp, sp));
  }
}

TEST_CASE("tp groups that do not start at rank 0", "[tp][MP-1]") {
  for (const bool sp : {false, true}) {
    Trial trial = trial_on(2, sp);
    trial.mesh = Mesh::training({.dp = 2, .tp = 2});
    check_trial(trial);
  }
}

TEST_CASE("tied embeddings: one sharded leaf with two uses; its pad row", "[tp][MP-3]") {
  for (const int64_t tp : {2, 3, 4}) {
    for (const bool sp : {false, true}) {
      Trial trial = trial_on(tp, sp);
      trial.config.tie_word_embeddings = true;
      trial.config.pad_token_id = 14;
      check_trial(trial);
    }
  }
}

TEST_CASE("kv heads: grouped, and fewer than tp with each head on several ranks", "[tp][MP-4]") {
  const auto with_heads = [](int64_t tp, int64_t heads, int64_t kv_heads, bool sp) {
    Trial trial = trial_on(tp, sp);
    trial.config.num_attention_heads = heads;
    trial.config.num_key_value_heads = kv_heads;
    check_trial(trial);
  };
  for (const bool sp : {false, true}) {
    with_heads(2, 8, 4, sp);
    with_heads(4, 8, 2, sp);  // ranks 0,1 and 2,3 share a head
    with_heads(4, 4, 1, sp);
    with_heads(3, 6, 1, sp);
    with_heads(3, 6, 3, sp);
  }
}

TEST_CASE("each family over tp: norms of heads, windows, two rope bases, norms of outputs",
          "[tp][MP-1][MP-3]") {
  for (const char* family : {"qwen2", "qwen3", "gemma3"}) {
    for (const auto& [tp, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{{3, 6}, {4, 2}}) {
      for (const bool sp : {false, true}) {
        INFO(family);
        Trial trial = trial_on(tp, sp);
        trial.config.family = family;
        trial.config.attention_bias = trial.config.mlp_bias = false;
        trial.config.num_key_value_heads = kv_heads;
        trial.config.tie_word_embeddings = trial.config.traits().tied;
        trial.config.sliding_window = 3;
        trial.config.sliding_layers = {true, false};
        trial.config.rope_local_theta = 30;
        check_trial(trial);
      }
    }
  }
}

TEST_CASE("an MLP narrower than tp leaves a rank with none of it", "[tp][MP-1]") {
  Trial trial = trial_on(4, false);
  trial.config.intermediate_size = 5;
  check_trial(trial);
}

TEST_CASE("frozen weights: everything below them still gets its whole gradient", "[tp][TP-1]") {
  for (const bool sp : {false, true}) {
    Trial trial = trial_on(3, sp);
    trial.frozen = {"model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.gate_proj.weight",
                    "model.layers.1.mlp.up_proj.weight",      "model.layers.0.mlp.down_proj.weight",
                    "model.layers.1.input_layernorm.weight",  "lm_head.weight"};
    check_trial(trial);
  }
}

TEST_CASE(
    "custom plans: whole embedding and lm_head, whole attention, gathered and scattered linears",
    "[tp][MP-1][TP-1][TP-2]") {
  const nlohmann::json whole_ends = {{"model.embed_tokens", "Replicate"}, {"lm_head", "Replicate"}};
  const nlohmann::json whole_attention = {{"*.0.self_attn.*", "Replicate"}};
  const nlohmann::json whole_mlp = {{"*.mlp.*", "Replicate"}};
  const nlohmann::json gathered_and_scattered = {{"*.self_attn.q_proj", "ColumnParallelGathered"},
                                                 {"*.self_attn.k_proj", "ColumnParallelGathered"},
                                                 {"*.self_attn.v_proj", "Replicate"},
                                                 {"*.self_attn.attention", "Replicate"},
                                                 {"*.self_attn.o_proj", "RowParallelScattered"},
                                                 {"*.mlp.gate_proj", "ColumnParallelGathered"},
                                                 {"*.mlp.up_proj", "ColumnParallelGathered"},
                                                 {"*.mlp.activation", "Replicate"},
                                                 {"*.mlp.down_proj", "RowParallelScattered"}};
  for (const auto& plan : {whole_ends, whole_attention, whole_mlp, gathered_and_scattered}) {
    for (const bool sp : {false, true}) {
      Trial trial = trial_on(3, sp);
      trial.config.num_attention_heads = 6;
      trial.config.num_key_value_heads = 3;
      trial.options.custom_plan = plan;
      check_trial(trial);
    }
  }
}

TEST_CASE("whole attention lifts the demand on head counts", "[tp][MP-4]") {
  Trial trial = trial_on(3, true);
  trial.config.num_attention_heads = 4;
  trial.config.num_key_value_heads = 2;
  trial.options.custom_plan = {{"*.self_attn.*", "Replicate"}};
  check_trial(trial);
}

TEST_CASE(
    "lower precisions run throughout: leaves in their dtype, logprobs and norms near the golden",
    "[tp][MP-1][LP-1]") {
  struct Precision {
    at::ScalarType dtype;
    double tolerance;
  };
  for (const auto& [dtype, tolerance] : {Precision{at::kFloat, 1e-4}, {at::kBFloat16, 0.1}}) {
    for (const bool sp : {false, true}) {
      Trial trial = trial_on(3, sp);
      trial.config.num_attention_heads = 6;
      trial.config.num_key_value_heads = 1;
      trial.dtype = dtype;
      const auto weights = seeded_weights(trial.config, 5);
      const auto golden = run_golden(trial, weights);
      for (const auto& run : run_ranks(trial, weights)) {
        CHECK(run->logprobs.scalar_type() == at::kFloat);
        CHECK(difference(golden->logprobs.to(at::kFloat), run->logprobs, tolerance) == "");
        CHECK(run->grads.size() == golden->grads.size());
        for (const auto& [name, grad] : run->grads) CHECK(grad.scalar_type() == dtype);
        const at::Tensor norm_grad = run->grads.at("model.norm.weight").to(at::kDouble);
        CHECK(difference(golden->grads.at("model.norm.weight"), norm_grad, tolerance) == "");
      }
    }
  }
}

TEST_CASE("two runs of the same world are equal to the bit", "[tp][MP-1]") {
  const Trial trial = trial_on(4, true);
  const auto weights = seeded_weights(trial.config, 5);
  const auto first = run_ranks(trial, weights), second = run_ranks(trial, weights);
  for (size_t rank = 0; rank < first.size(); ++rank) {
    CHECK(first[rank]->logprobs.equal(second[rank]->logprobs));
    for (const auto& [name, grad] : first[rank]->grads) {
      CHECK(grad.equal(second[rank]->grads.at(name)));
    }
  }
}

}  // namespace
}  // namespace shardproof::tests::tp_decoder_test
