// What any layout of at most 8 ranks saves, every other one loads: weights, moments, momentum,
// counts of steps, the scheduler's steps and the loss scale, to the bit; and it trains on.
#include <catch2/catch.hpp>
#include <cstdio>
#include <random>

#include "base/error.h"
#include "tests/unit/policy/dropping_run.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kRanks = 8;

// Sizes that divide by most numbers of ranks, and two that do not.
ModelConfig model_of(bool experts) {
  ModelConfig config = small_model();
  config.hidden_size = 12;
  config.intermediate_size = 24;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 2;
  if (experts) {
    config.family = "qwen3_moe";
    config.attention_bias = false;
    config.router = {.num_experts = 8, .num_chosen = 2};
    config.expert_width = 8;
    config.expert_layers = {false, true, true, true};
  }
  return config;
}

struct LayoutCase {
  std::string name = {};
  Trial trial = {};
};

// Muon has momentum for matrices and the moments of AdamW for the others.
LayoutCase layout_case(const AxisSizes& sizes, DataParallelKind data, bool experts) {
  LayoutCase made{
      .trial = {.mesh = Mesh::training(sizes), .steps = 1, .config = model_of(experts)}};
  made.trial.options.optimizer = {.kind = OptimizerKind::kMuon, .momentum = 0.9, .nesterov = true};
  made.trial.options.schedule = some_schedule();
  made.trial.options.loss_scale = {.enabled = true, .init_scale = 8, .growth_interval = 3};
  made.trial.parallel.data = {.kind = data, .replicate_size = 2};
  made.trial.parallel.tensor.sequence_parallel = experts && sizes.tp > 1;
  made.name = made.trial.mesh.describe() + " " + name_of(data);
  return made;
}

bool runs(const LayoutCase& layout) {
  try {
    train_with(layout.trial, [](Trainer&, MeshComm&) {});
    return true;
  } catch (const Error&) {  // a size that does not divide, or nothing to shard
    return false;
  }
}

// Every layout; the model does not run on all of them.
std::vector<LayoutCase> all_layouts(bool experts) {
  std::vector<LayoutCase> layouts;
  const auto add = [&](const AxisSizes& sizes) {
    for (const DataParallelKind data :
         {DataParallelKind::kReplicate, DataParallelKind::kFsdp, DataParallelKind::kHybrid}) {
      const int64_t shares = sizes.dp * sizes.cp * sizes.ulysses;
      if (data == DataParallelKind::kFsdp && shares == 1) continue;
      if (data == DataParallelKind::kHybrid && (sizes.dp % 2 != 0 || shares == 2)) continue;
      try {
        layouts.push_back(layout_case(sizes, data, experts));
      } catch (const Error&) {  // the mesh itself
      }
    }
  };
  std::vector<AxisSizes> meshes = {{}};
  for (const TrainingAxis& axis : kTrainingAxes) {
    std::vector<AxisSizes> more;
    for (const AxisSizes& mesh : meshes) {
      for (int64_t size = 1; size * mesh.ranks() <= kRanks; ++size) {
        more.push_back(mesh);
        more.back().*axis.size = size;
      }
    }
    meshes = more;
  }
  for (AxisSizes mesh : meshes) {
    for (mesh.ep = 1; mesh.ep <= (experts ? kRanks : 1); ++mesh.ep) {
      for (mesh.etp = 1; mesh.ep * mesh.etp <= (experts ? mesh.ranks() : 1); ++mesh.etp) add(mesh);
    }
  }
  return layouts;
}

constexpr at::Tensor OptimizerState::*kStates[] = {
    &OptimizerState::exp_avg, &OptimizerState::exp_avg_sq, &OptimizerState::momentum_buffer};

// All that a checkpoint has, whole.
struct WholeState {
  std::map<std::string, std::vector<at::Tensor>>
      tensors;                 // the weight and its states, or undefined
  std::vector<int64_t> steps;  // of each parameter
  int64_t step = 0, schedule_steps = 0;
  LossScaleState scale;
};

std::vector<at::Tensor> tensors_of(const Trainer& trainer, size_t i) {
  std::vector<at::Tensor> tensors = {trainer.masters()[i]};
  for (const auto state : kStates) tensors.push_back(trainer.states()[i].*state);
  return tensors;
}

// Makes a step on a layout and saves it to `root`; returns the folder.
std::string save_at(const LayoutCase& layout, const std::string& root, WholeState& whole) {
  std::vector<std::vector<std::vector<at::Tensor>>> pieces(
      static_cast<size_t>(layout.trial.mesh.world_size()));
  std::vector<ParameterPtr> parameters;
  train_with(layout.trial, [&](Trainer& trainer, MeshComm& comm) {
    trainer.step(small_batch());
    save_checkpoint(root, trainer, comm);
    auto& own = pieces[static_cast<size_t>(comm.rank())];
    for (size_t i = 0; i < trainer.parameters().size(); ++i) {
      own.push_back(tensors_of(trainer, i));
      for (at::Tensor& tensor : own.back()) tensor = tensor.defined() ? tensor.clone() : tensor;
    }
    if (comm.rank() != 0) return;
    parameters = trainer.parameters();
    for (const OptimizerState& state : trainer.states()) whole.steps.push_back(state.step);
    whole.step = trainer.step_count();
    whole.schedule_steps = trainer.schedule_steps();
    whole.scale = trainer.loss_scale();
  });
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    for (size_t part = 0; part < pieces[0][i].size(); ++part) {
      std::vector<at::Tensor> of_ranks;
      for (const auto& rank : pieces) of_ranks.push_back(rank[i][part]);
      const bool is_there = of_ranks[0].defined();
      whole.tensors[parameter.name].push_back(
          is_there
              ? reassemble(of_ranks, parameter.global_shape, parameter.layout, layout.trial.mesh)
              : at::Tensor());
    }
  }
  return *latest_checkpoint(root);
}

// "" or what a rank has otherwise than the layout that saved it. Padding is 0.
std::string problem_of_rank(const Trainer& trainer, const MeshComm& comm, const WholeState& whole) {
  const LossScaleState& scale = trainer.loss_scale();
  if (trainer.step_count() != whole.step) return "the count of steps";
  if (trainer.schedule_steps() != whole.schedule_steps) return "the scheduler's steps";
  if (scale.scale != whole.scale.scale || scale.good_steps != whole.scale.good_steps) {
    return "the loss scale";
  }
  for (size_t i = 0; i < trainer.parameters().size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    if (trainer.states()[i].step != whole.steps[i]) return "the steps of " + parameter.name;
    const std::vector<at::Tensor>& saved = whole.tensors.at(parameter.name);
    const std::vector<at::Tensor> loaded = tensors_of(trainer, i);
    for (size_t part = 0; part < loaded.size(); ++part) {
      const std::string what = parameter.name + ", tensor " + std::to_string(part);
      if (loaded[part].defined() != saved[part].defined()) return what + " is missing or too many";
      if (!loaded[part].defined()) continue;
      at::Tensor due = saved[part];
      for (int64_t dim = 0; dim < due.dim(); ++dim) {
        const at::Tensor places = at::tensor(parameter.layout.resolved(due.dim()).indices(
                                                 dim, due.size(dim), comm.mesh(), comm.rank()),
                                             at::kLong);
        std::vector<int64_t> shape(static_cast<size_t>(due.dim()), 1);
        shape[static_cast<size_t>(dim)] = -1;
        due = due.index_select(dim, places.clamp_min(0)) * places.ge(0).view(shape);
      }
      if (!at::equal(loaded[part], due)) return what;
    }
  }
  return "";
}

struct Saved {
  std::string name = {}, folder = {};
  WholeState whole = {};
};

// Loads each of `saved` on the layout, and makes the next step after the last one. Returns the
// parameters after it. Throws an exception for what is wrong.
Trained load_at(const LayoutCase& layout, const std::vector<const Saved*>& saved) {
  return train_with(layout.trial, [&](Trainer& trainer, MeshComm& comm) {
    for (const Saved* one : saved) {
      load_checkpoint(one->folder, trainer, comm);
      const std::string problem = problem_of_rank(trainer, comm, one->whole);
      if (problem.empty()) continue;
      throw std::runtime_error(one->name + " -> " + layout.name + ", rank " +
                               std::to_string(comm.rank()) + ": " + problem);
    }
    trainer.step(small_batch());
  });
}

Trained two_steps_of_one_rank(bool experts) {
  LayoutCase one = layout_case({}, DataParallelKind::kReplicate, experts);
  one.trial.steps = 2;
  Trained trained = train(one.trial);
  trained.metrics.clear();
  return trained;
}

// Of all layouts where `drawn` is 0, else of so many. Each loads what at most `most` others saved,
// evenly spread over the list. Returns the number of pairs.
int64_t judge_pairs(bool experts, size_t drawn, size_t most) {
  std::vector<LayoutCase> all = all_layouts(experts), layouts;
  std::mt19937 random(37);
  if (drawn > 0) std::shuffle(all.begin(), all.end(), random);
  for (const LayoutCase& layout : all) {
    if (drawn > 0 && layouts.size() == drawn) break;
    if (runs(layout)) layouts.push_back(layout);
  }
  CHECK(layouts.size() >= (drawn > 0 ? drawn : 80));
  const sim::ScratchFolder root;
  std::vector<Saved> saved;
  for (size_t i = 0; i < layouts.size(); ++i) {
    Saved one{.name = layouts[i].name};
    one.folder = save_at(layouts[i], root.path() + "/" + std::to_string(i), one.whole);
    saved.push_back(std::move(one));
  }
  const Trained golden = two_steps_of_one_rank(experts);
  int64_t pairs = 0;
  for (size_t i = 0; i < layouts.size(); ++i) {
    std::vector<const Saved*> from;
    const size_t others = std::min(most, layouts.size() - 1);
    for (size_t j = 0; j < others; ++j) {
      const size_t further = 1 + j * (layouts.size() - 1) / others;
      from.push_back(&saved[(i + further) % layouts.size()]);
    }
    INFO(layouts[i].name << " after " << from.back()->name);
    CHECK(difference(golden, load_at(layouts[i], from), 1e-9) == "");
    pairs += std::ssize(from);
    if (drawn > 0) continue;
    std::fprintf(stderr, "%zu of %zu layouts have loaded what the others saved\n", i + 1,
                 layouts.size());
  }
  return pairs;
}

}  // namespace

TEST_CASE("drawn layouts of at most 8 ranks load what others saved, and train on",
          "[policy][PW-8][EP-14]") {
  CHECK(judge_pairs(/*experts=*/false, /*drawn=*/12, /*most=*/3) == 36);
  CHECK(judge_pairs(/*experts=*/true, /*drawn=*/12, /*most=*/3) == 36);
}

TEST_CASE("every layout of at most 8 ranks loads what every other one saved, and trains on",
          "[.][layouts]") {
  const int64_t pairs = judge_pairs(/*experts=*/false, /*drawn=*/0, /*most=*/1000);
  WARN(pairs << " pairs");
  CHECK(pairs > 20000);
}

// All pairs would take some five hours.
TEST_CASE("every layout of experts of at most 8 ranks loads what 32 others saved, and trains on",
          "[.][layouts]") {
  const int64_t pairs = judge_pairs(/*experts=*/true, /*drawn=*/0, /*most=*/32);
  WARN(pairs << " pairs");
  CHECK(pairs > 25000);
}

}  // namespace shardproof::tests
