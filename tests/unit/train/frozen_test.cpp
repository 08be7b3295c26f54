// A step leaves parameters that are not trainable unchanged, and changes the others.
#include <catch2/catch.hpp>

#include "tests/unit/train/small_run.h"

namespace shardproof::tests::frozen_test {
namespace {

bool is_frozen(const std::string& name) {
  return name == "model.embed_tokens.weight" || name.starts_with("model.layers.1.mlp.up_proj") ||
         name.ends_with("k_proj.bias");
}

void freeze(Decoder& model, int64_t) {
  for (const ParameterPtr& parameter : model.parameters()) {
    if (is_frozen(parameter->name)) parameter->trainable = false;
  }
}

// Steps with weight decay, in which a frozen parameter may have no optimizer state.
Trained train_frozen(const Trial& trial) {
  std::vector<std::string> problems(static_cast<size_t>(trial.mesh.world_size()));
  const Trained trained = train_with(trial, [&](Trainer& trainer, MeshComm& comm) {
    for (int64_t step = 0; step < trial.steps; ++step) trainer.step(small_batch());
    for (size_t i = 0; i < trainer.parameters().size(); ++i) {
      const OptimizerState& state = trainer.states()[i];
      const bool has_state = state.step != 0 || state.exp_avg.defined() ||
                             state.exp_avg_sq.defined() || state.momentum_buffer.defined();
      if (has_state == trainer.parameters()[i]->trainable) continue;
      problems[static_cast<size_t>(comm.rank())] += trainer.parameters()[i]->name + " ";
    }
  });
  for (const std::string& problem : problems) CHECK(problem == "");
  return trained;
}

TEST_CASE("the optimizer does not touch a frozen parameter, nor keep state of it", "[train]") {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    for (const DataParallelKind kind : {DataParallelKind::kReplicate, DataParallelKind::kFsdp}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
        INFO("optimizer " << static_cast<int>(optimizer) << " data parallelism "
                          << static_cast<int>(kind) << " " << c10::toString(dtype));
        Trial trial{.mesh = Mesh::training({.dp = 2}), .dtype = dtype, .prepare = freeze};
        trial.parallel.data.kind = kind;
        trial.options.optimizer = {.kind = optimizer, .weight_decay = 0.5, .momentum = 0.9};
        Trial none = trial;
        none.steps = 0;
        const Trained first = train(none), trained = train_frozen(trial);
        for (const auto& [name, tensor] : first.parameters) {
          INFO(name);
          CHECK(tensor.equal(trained.parameters.at(name)) == is_frozen(name));
        }
      }
    }
  }
}

TEST_CASE("beside frozen parameters the others take the step that they would take", "[train]") {
  Trial trial{.mesh = Mesh::training({.dp = 2}), .steps = 1};
  trial.options.max_norm = 0;  // the norm includes trained parameters only
  Trained golden = train(trial);
  std::erase_if(golden.parameters, [](const auto& item) { return is_frozen(item.first); });
  golden.metrics.clear();
  trial.prepare = freeze;
  CHECK(difference(golden, train(trial), 1e-12) == "");
}

TEST_CASE("patterns of frozen parameters fit some parameters and not all", "[train]") {
  const auto frozen = [](const std::vector<std::string>& patterns) {
    Decoder model(small_model(), seeded_weights(small_model(), 1));
    model.freeze(patterns);
    return model.parameters();
  };
  for (const ParameterPtr& parameter :
       frozen({"model.embed*", "*.1.mlp.up_proj.*", "*k_proj.bias"})) {
    INFO(parameter->name);
    CHECK(parameter->trainable != is_frozen(parameter->name));
  }
  CHECK_THROWS_WITH(frozen({"model.embed*", "embed"}),
                    Catch::Contains("\"embed\"") && Catch::Contains("none of"));
  CHECK_THROWS_WITH(frozen({"*"}), Catch::Contains("are frozen"));
}

}  // namespace
}  // namespace shardproof::tests::frozen_test
