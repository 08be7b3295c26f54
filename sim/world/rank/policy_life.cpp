#include "sim/world/rank/policy_life.h"

#include <ATen/ATen.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/read_text.h"
#include "base/seed.h"
#include "base/temporary_folder.h"
#include "model/precision.h"
#include "model/weights.h"
#include "parallel/hf/save_weights.h"
#include "parallel/hf/scatter_weights.h"
#include "sim/case/policy_stages.h"
#include "sim/world/clock/rank_clock.h"
#include "sim/world/rank/case_options.h"
#include "sim/world/rank/failing_checkpoints.h"
#include "sim/world/rank/fed_optimizer.h"
#include "sim/world/rank/inference_rank.h"
#include "sim/world/rank/stage_probe.h"

namespace shardproof::sim::world {
namespace {

constexpr int64_t kLongestPath = 4096;

BatchingOptions score_batching(const CaseSpec& spec, const BatchingOptions& training) {
  BatchingOptions batching = training;
  batching.token_budget = spec.batching.logprob_budget;
  return batching;
}

PolicyOptions policy_options(const CaseSpec& spec, DrawLog& draws) {
  PolicyOptions options{.train = train_options(spec),
                        .parallel = parallel_options(spec.parallel),
                        .frozen = spec.frozen};
  options.score_batching = score_batching(spec, options.train.batching);
  if (draws_numbers(spec)) options.random_seed = spec.seed;
  options.draw_log = &draws;
  return options;
}

// In what a load may change.
bool is_same_layout(const ParallelSpec& a, const ParallelSpec& b) {
  return static_cast<const AxisSizes&>(a) == b && a.data_parallel == b.data_parallel &&
         a.sequence_parallel == b.sequence_parallel;
}

}  // namespace

struct PolicyLife::Place {
  Place(const CaseSpec& case_spec, const RankEnv& env, const CaseInputs& inputs,
        CallListener* listener, Probe& probe, DrawLog& draws)
      : spec(case_spec),
        mesh(spec.parallel.mesh()),
        comm(mesh, env.rank, env.make_backend, listener),
        setup{.mesh = mesh,
              .rank = env.rank,
              .comm = comm,
              .probe = probe,
              .dtype = dtype_of_precision(name_of(spec.precision)),
              .device = at::Device(env.device)},
        worker(setup, inputs.config,
               root_deals_weights(spec) ? weights_to_come(inputs.config) : inputs.weights,
               policy_options(spec, draws)) {}
  const CaseSpec spec;  // with the mesh of this place
  const Mesh mesh;
  MeshComm comm;
  const RankSetup setup;
  PolicyWorker worker;
};

// A folder for checkpoints that all ranks use, below one that control removes after the case, or
// else in TMPDIR; rank 0 deletes it.
class PolicyLife::SharedFolder {
 public:
  SharedFolder(MeshComm& comm, at::Device device, const std::string& above) {
    at::Tensor bytes = at::zeros({kLongestPath}, at::kByte);
    namespace fs = std::filesystem;
    const fs::path place = above.empty() ? fs::temp_directory_path() : fs::path(above);
    if (comm.rank() == 0) {
      try {
        own_.emplace((place / "shardproof-policy-").string());
        path_ = own_->path();
      } catch (const std::system_error&) {
        // All ranks say so.
      }
      SHARDPROOF_ASSERT(path_.size() < kLongestPath, "a path fits what is sent of it");
      std::memcpy(bytes.data_ptr(), path_.data(), path_.size());
    }
    bytes = comm.world().broadcast(bytes.to(device), 0, "checkpoint folder").cpu();
    path_ = std::string(static_cast<const char*>(bytes.const_data_ptr()));
    if (!path_.empty()) return;
    if (comm.rank() != 0) {
      throw_failed("rank 0 sent no name of a folder for checkpoints",
                   "its own error says why; without one, the broadcast 'checkpoint folder' "
                   "lost what it carried",
                   "threw");
    }
    throw_failed("rank 0 cannot make a folder for checkpoints under " + place.string(),
                 "set TMPDIR to a folder that can be written and that all ranks see", "threw");
  }
  const std::string& path() const { return path_; }

 private:
  std::optional<TemporaryFolder> own_;
  std::string path_;
};

PolicyLife::PolicyLife(const CaseSpec& spec, const RankEnv& env, const CaseInputs& inputs,
                       const GoldenRecord* golden, CallListener* listener, Probe& probe)
    : spec_(spec),
      env_(env),
      inputs_(inputs),
      golden_(golden),
      listener_(listener),
      drawn_(stream_seed(spec.seed, "failures of stages")),
      probe_(std::make_unique<StageProbe>(probe)) {
  if (env.rank == 0) receivers_ = refit_group(spec, env, listener);
}

PolicyLife::~PolicyLife() = default;

const Trainer& PolicyLife::trainer() { return place_->worker.trainer(); }

MeshComm& PolicyLife::comm() { return place_->comm; }

StepMetrics PolicyLife::run() {
  for (int64_t life = 0; life < spec_.lives; ++life) live();
  return metrics_;
}

// Starts a worker from the first weights, after the previous worker has ended.
void PolicyLife::begin(const ParallelSpec& parallel) {
  place_.reset();
  CaseSpec here = spec_;
  here.parallel = parallel;
  place_ = std::make_unique<Place>(here, env_, inputs_, listener_, *probe_, draws_);
  if (on_trainer) on_trainer(trainer(), probe_->moment + 1);
  if (env_.on_tokens) place_->worker.trainer().watch_tokens(env_.on_tokens);
  if (root_deals_weights(spec_)) take_weights();
  observe_masters(trainer(), *probe_, ObservationKind::kInitial);
}

// Receives the weights from rank 0, which alone has read them.
void PolicyLife::take_weights() {
  PolicyWorker& worker = place_->worker;
  const WeightMap* full = env_.rank == 0 ? inputs_.weights.get() : nullptr;
  worker.begin_with(scatter_weights(worker.trainer().parameters(), full, place_->comm,
                                    worker.trainer().device()));
  dealt_.clear();
  for (const at::Tensor& master : worker.trainer().masters()) dealt_.push_back(master.clone());
}

// A worker that is on the first mesh goes on, from the first weights; another one ends.
void PolicyLife::begin_life() {
  if (!place_ || !is_same_layout(spec_.parallel, place_->spec.parallel)) {
    return begin(spec_.parallel);
  }
  if (root_deals_weights(spec_)) {
    take_weights();
  } else {
    std::vector<at::Tensor> masters;
    for (const ParameterPtr& parameter : trainer().parameters()) {
      masters.push_back(initial_shard(*parameter, *inputs_.weights, place_->setup));
    }
    place_->worker.begin_with(masters);
  }
  observe_masters(trainer(), *probe_, ObservationKind::kInitial);
}

void PolicyLife::live() {
  begin_life();
  batch_ = batch_as_read(spec_, inputs_.batch, place_->setup);
  folder_.reset();
  folder_ =
      std::make_unique<SharedFolder>(place_->comm, place_->setup.device, spec_.scratch_folder);
  for (const StageSpec& stage : spec_.stages) run_stage(stage);
  place_->worker.settle();
  // No rank may delete the folder while another reads it.
  place_->comm.world().barrier("end of a life");
}

void PolicyLife::run_stage(const StageSpec& stage) {
  if (stage.fails) return fail(stage);
  if (stage.kind == StageKind::kTrain) return train(stage);
  if (stage.kind == StageKind::kScore || stage.kind == StageKind::kReference) return score(stage);
  if (stage.kind == StageKind::kRefit) return refit();
  if (stage.kind == StageKind::kLoad) return load(stage);
  if (stage.kind == StageKind::kExport) return export_weights(stage);
  if (stage.kind == StageKind::kDraw) return draw();
  if (stage.kind == StageKind::kSave) {
    saved_ = place_->worker.save(folder_->path());
    return;
  }
  SHARDPROOF_ASSERT(stage.kind == StageKind::kOffload, "no stage '" + name_of(stage.kind) + "'");
  place_->worker.offload(Offloaded::What::kParametersAndOptimizer);
}

void PolicyLife::next_moment() {
  ++probe_->moment;
  if (env_.on_step) env_.on_step(probe_->moment);
}

// Fails again and again, each time later: the distances are drawn and grow, so that the first
// failure is near the beginning of the call and the last one at its end.
void PolicyLife::fail(const StageSpec& stage) {
  PolicyWorker& worker = place_->worker;
  if (stage.kind == StageKind::kSave) return fail_to_save(worker, place_->comm, folder_->path());
  if (stage.kind == StageKind::kLoad) {
    return fail_to_load(worker, place_->comm, saved_, draw_below(place_->mesh.world_size()));
  }
  bool ended = false;
  const auto fail_at = [&](int64_t index) {
    probe_->fail_at(index);
    try {
      if (stage.kind == StageKind::kTrain) {
        worker.train(batch_, {.global_batch_size = stage.global_batch_size,
                              .micro_batch_size = stage.micro_batch_size});
        SHARDPROOF_ASSERT(false, "a step observes its loss or norm before it updates");
      } else if (stage.kind == StageKind::kScore) {
        worker.score(batch_, stage.micro_batch_size);
      } else {
        worker.reference_logprobs(batch_, stage.micro_batch_size);
      }
      ended = true;  // scores have no effect that could be left
    } catch (const PlannedFailure&) {
      ended = probe_->ended();
    }
    probe_->check_freed();
  };
  int64_t last = 0;
  for (int64_t index = draw_below(3); !ended; index += 1 + draw_below(2 * index + 4)) {
    fail_at(last = index);
  }
  // The last failure comes behind the gradients, which are taken by then. One more leaves some.
  fail_at(last / 2 + draw_below(last / 4 + 1));
  probe_->pass_on();
}

int64_t PolicyLife::draw_below(int64_t below) {
  drawn_ = mix_bits(drawn_ + 1);
  return static_cast<int64_t>(drawn_ % static_cast<uint64_t>(below));
}

void PolicyLife::train(const StageSpec& stage) {
  PolicyWorker& worker = place_->worker;
  TrainCall call{.global_batch_size = stage.global_batch_size,
                 .micro_batch_size = stage.micro_batch_size,
                 .eval_mode = stage.eval_mode,
                 .before_batch = [this](int64_t) { next_moment(); },
                 .after_batch =
                     [this, &stage](int64_t) {
                       if (!stage.eval_mode) feed_optimizer();
                     }};
  const int64_t made = stage.interrupted_after * stage.global_batch_size;
  if (made > 0) interrupt(stage, call);
  metrics_ = worker.train(batch_.slice(made, batch_.size() - made), call).back();
}

// Makes the steps before the interruption.
void PolicyLife::interrupt(const StageSpec& stage, TrainCall call) {
  call.before_batch = [this, &stage](int64_t index) {
    if (index < stage.interrupted_after) return next_moment();
    probe_->fail_at(draw_below(40));
  };
  try {
    place_->worker.train(batch_, call);
    SHARDPROOF_ASSERT(false, "a step observes its loss or norm before it updates");
  } catch (const PlannedFailure&) {
    probe_->check_freed();
  }
  probe_->pass_on();
}

// Uses this mesh, whichever mesh first held the golden's state.
void PolicyLife::feed_optimizer() {
  if (!golden_ || spec_.precision != Precision::kFloat64) return;
  const ClockPause pause(env_.clock);
  const TrainOptions& options = place_->worker.options().train;
  const Trainer& trainer = place_->worker.trainer();
  const auto initial = [&](size_t index) {
    if (!dealt_.empty()) return dealt_[index].clone();
    return initial_shard(*trainer.parameters()[index], *inputs_.weights, place_->setup);
  };
  observe_fed_optimizer(trainer, place_->setup, *golden_, initial, options.optimizer,
                        options.max_norm, steps_behind(spec_, probe_->moment));
}

void PolicyLife::score(const StageSpec& stage) {
  next_moment();
  const bool own = stage.kind == StageKind::kScore;
  const at::Tensor scores = own ? place_->worker.score(batch_, stage.micro_batch_size)
                                : place_->worker.reference_logprobs(batch_, stage.micro_batch_size);
  observe_scores(own ? "scores" : "reference_scores", scores);
  (own ? batch_.prev_logprobs : batch_.reference_logprobs) = scores.cpu().to(at::kDouble);
}

void PolicyLife::observe_scores(const std::string& name, const at::Tensor& scores) {
  if (!probe_->listens(Phase::kStep)) return;
  probe_->observe(
      {.kind = ObservationKind::kScores, .name = name, .phase = Phase::kStep, .tensor = scores});
}

void PolicyLife::refit() {
  next_moment();
  place_->worker.refit({.dtype = place_->setup.dtype,
                        .budget_bytes = spec_.refit_bytes,
                        .path = spec_.colocated ? RefitPath::kSharedMemory : RefitPath::kBroadcast},
                       receivers_.get());
}

// A worker whose layout stays goes on with what it has, which the load must replace.
void PolicyLife::load(const StageSpec& stage) {
  if (is_same_layout(stage.parallel, place_->spec.parallel)) {
    observe_masters(trainer(), *probe_, ObservationKind::kInitial);  // the judge forgets the states
  } else {
    place_->worker.settle();
    begin(stage.parallel);
  }
  place_->worker.load(saved_);
  next_moment();
  place_->worker.trainer().observe_state();
}

// Rank 0 writes and reads; the judge compares every rank's shards of the weights read.
void PolicyLife::export_weights(const StageSpec& stage) {
  next_moment();
  const std::string folder = folder_->path() + "/exported";
  const Trainer& trainer = place_->worker.trainer();
  SaveOptions options{.dtype = wider_type(place_->setup.dtype), .device = trainer.device()};
  if (stage.max_file_bytes > 0) options.max_file_bytes = stage.max_file_bytes;
  save_weights(folder, spec_.model, trainer.parameters(), trainer.masters(), options, place_->comm);
  std::shared_ptr<const WeightMap> read;
  if (env_.rank == 0) {  // by the config beside them, as whoever opens the folder does
    ModelConfig config = ModelConfig::from_json(read_json_object(folder + "/config.json"));
    // A run may have given one to a family that has none, of which no config.json can tell.
    config.router.selection_bias = inputs_.config.router.selection_bias;
    read = load_weights(folder, config);
  }
  const std::vector<at::Tensor> pieces =
      scatter_weights(trainer.parameters(), read.get(), place_->comm, trainer.device());
  if (!probe_->listens(Phase::kStep)) return;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    probe_->observe({.kind = ObservationKind::kParameter,
                     .name = observed_name(ObservationKind::kParameter, parameter.name),
                     .phase = Phase::kStep,
                     .tensor = pieces[i],
                     .layout = parameter.layout});
  }
}

// Draws from the stream that all ranks of a stage share, and from the separate ones of tp ranks.
void PolicyLife::draw() {
  next_moment();
  draws_.clear();
  RngTracker& rng = place_->worker.rng();
  rng.uniform({kNumbersDrawn}, "alike");
  {
    const auto region = rng.fork();
    rng.uniform({kNumbersDrawn}, "parts");
  }
  if (!probe_->listens(Phase::kStep)) return;
  const auto observe = [this](const std::string& place, const Layout& layout) {
    Observation drawn = draw_observation(draws_, place, layout, probe_->moment);
    drawn.phase = Phase::kStep;
    probe_->observe(drawn);
  };
  observe("alike", Layout({Cut::even(0, "pp")}));
  observe("parts", Layout({Cut::even(0, "pp"), Cut::even(0, "tp")}));
}

}  // namespace shardproof::sim::world
