// One checked case: the data that a golden, a rank or a judge needs. A scenario file expands to a
// list of cases; `check CASE` makes one. It travels between processes as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/expert_choices.h"
#include "base/precision.h"
#include "base/training_choices.h"
#include "mesh/mesh.h"
#include "sim/case/verdict.h"
#include "sim/case/world_spec.h"

namespace shardproof::sim {

struct LossSpec : LossOptions {
  double temperature = 1;  // divides the logits, for scoring too
};

// A scheduler of torch.optim.lr_scheduler; its constants have PyTorch's names.
struct SchedulerSpec {
  ScheduleKind kind = ScheduleKind::kConstant;
  double factor = 1.0 / 3;                          // ConstantLR
  double start_factor = 1.0 / 3, end_factor = 1.0;  // LinearLR
  int64_t total_iters = 5;                          // ConstantLR, LinearLR
  int64_t t_max = 1;                                // CosineAnnealingLR
  double eta_min = 0.0;                             // CosineAnnealingLR
  std::vector<double> lr_lambda = {1.0};  // LambdaLR: one per step; the last one continues
};

struct OptimizerSpec : OptimizerOptions {
  double max_norm = 1.0;                       // <= 0: no clipping
  std::string norm_type = "2";                 // p of the gradient norm, or inf
  std::vector<SchedulerSpec> schedulers = {};  // of the learning rate; empty: constant
  std::vector<int64_t> milestones = {};        // steps at which the next scheduler takes over
};

// The source of the batch: `file` (batch.safetensors), or the seed.
struct DataSpec {
  std::string file;  // "" when generated
  int64_t batch_size = 4;
  int64_t seq_len = 16;            // S of the padded batch; 0: the greatest length
  std::vector<int64_t> lengths;    // one per sample; empty: every sample has seq_len tokens
  double mask_probability = 0.8;   // share of tokens that token_mask counts, drawn from the seed
  bool mask_weights = false;       // generated: token_mask holds weights of 0.25 to 2, not 1
  bool masked_not_finite = false;  // generated: NaN, infinite or huge where masked
  std::vector<int64_t> dropped_samples;  // samples whose sample_mask is 0
  bool uneven = false;                   // train: allow a global batch that dp does not divide
  // Generated: advantages of this sample are multiplied; -1: none.
  int64_t huge_advantage_sample = -1;
  double huge_advantage_factor = 1;
  BatchReader read_by = BatchReader::kAll;
};

struct BatchingSpec : BatchingOptions {
  int64_t logprob_budget = 0;  // token_budget where a policy scores
};

// How parameters are sharded over dp, cp and ulysses (data_parallel: fsdp, hybrid).
struct FsdpSpec {
  int64_t replicate_size = 1;  // hybrid: number of copies along dp
  bool reshard_after_forward = true;
  bool prefetch = true;                // gather the next unit while this one computes
  bool reduce_each_microbatch = true;  // false: reduce after the last one only
  bool cpu_offload = false;            // shards and optimizer on the CPU
};

struct PipelineSpec {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  BoundaryShapes shapes = BoundaryShapes::kKnown;
  int64_t chunks = 1;        // of the model on each rank
  int64_t group = 0;         // interleaved: microbatches of a group; 0: as many as ranks
  int64_t first_layers = 0;  // of rank 0; 0: as many as the others
  int64_t last_layers = 0;
  bool count_embedding = false;  // as a layer
  bool count_head = false;
  std::string layout = {};  // "Et|tt|tL"; "": by the other rules
};

struct ParallelSpec : AxisSizes {
  bool sequence_parallel = false;
  bool async_grad = false;     // linears reduce the gradient of x behind that of the weight
  bool gather_buffer = false;  // sequence_parallel gathers into memory that is used again
  int64_t deferred_wgrad = 0;  // microbatches whose weight gradients of linears come last
  BiasPlace bias = BiasPlace::kInLayer;
  bool spread_checkpoints = false;  // a checkpoint's input is kept in parts over tp
  GradientPlace gradients = GradientPlace::kAutograd;
  DataParallelKind data_parallel = DataParallelKind::kReplicate;
  ContextLayout context_layout = ContextLayout::kZigzag;  // of each sequence, over cp
  Rotation context_rotation = Rotation::kSendRecv;
  ExpertDispatch expert_dispatch = ExpertDispatch::kAllToAll;
  int64_t expert_rows_multiple = 1;
  PipelineSpec pp_options = {};
  FsdpSpec fsdp = {};
  CheckpointedRegions activation_checkpointing = CheckpointedRegions::kNone;
  DiscardedOutputs discarded_outputs = DiscardedOutputs::kNone;
  NormCopies grad_norm_counts = NormCopies::kOnce;
  nlohmann::json custom_plan = nullptr;  // {pattern: style}; null: the architecture's own plan
  // policy: inference ranks after those of the mesh; a refit gives them the weights over tp.
  int64_t inference_tp = 0;
  Mesh mesh() const { return Mesh::training(*this); }
  Mesh inference_mesh() const { return Mesh::training({.tp = inference_tp}); }
  int64_t world_size() const { return ranks() + inference_tp; }
};

// Another layout of the same model, which the case is compared with instead of one device.
struct ReferenceSpec {
  AxisSizes mesh = same_sizes(0);  // 0: not named; all 0: there is no reference
  bool sequence_parallel = false;
  DataParallelKind data_parallel = DataParallelKind::kReplicate;
  // Of the run that makes the reference: where its ranks put their pieces. "" in all others.
  std::string folder = {};
  bool is_set() const { return mesh != same_sizes(0); }
};

enum class StageKind { kTrain, kScore, kReference, kRefit, kOffload, kSave, kLoad, kExport, kDraw };
constexpr std::array<const char*, 9> names_of(StageKind) {
  return {"train", "score", "reference", "refit", "offload", "save", "load", "export", "draw"};
}

// One stage of a policy. Every value is set; none is left to a default.
struct StageSpec {
  StageKind kind = {};
  int64_t global_batch_size = 0;  // train: samples of an optimizer step
  int64_t micro_batch_size = 0;   // train, score, reference: of a dp rank; 0: its whole share
  bool eval_mode = false;         // train: no gradients, no optimizer step
  int64_t interrupted_after = 0;  // train: global batches before a call that throws; 0: none does
  bool fails = false;             // train, score, reference, save, load: every rank throws
  int64_t max_file_bytes = 0;     // export: tensor bytes of one file; 0: one file has all
  ParallelSpec parallel = {};     // mesh of the stage; a load changes it
};

// What the rank does at the call. Those that change its tensors are in sim/world/calls/spoil.cpp.
enum class FaultKind {
  kKill,       // the process dies of SIGKILL before the call
  kHang,       // the rank sleeps forever instead of making the call
  kThrow,      // the rank throws instead of making the call
  kSkip,       // the rank continues without making the call: it neither sends nor receives
  kDelay,      // the rank sleeps for some seconds, then makes the call
  kDrop,       // its contribution is lost: zeros are sent
  kDuplicate,  // its contribution to a sum counts twice
  kRepeat,     // the call is made twice, one after the other
  kCorrupt,    // one bit of one element of its input or output flips
  kStale,      // the data of the previous matching call are sent again
  kCut,        // the link of the rank's node goes down before the call
  kSlow,       // the link of the rank's node is slow from before the call on
  kLag,        // from then on all packets on that link come late
  kLose,       // from then on that link loses packets
  kSilence,    // the judge gets no tensor of this name from the rank any more
};
constexpr std::array<const char*, 15> names_of(FaultKind) {
  return {"kill",    "hang",  "throw", "skip", "delay", "drop", "duplicate", "repeat",
          "corrupt", "stale", "cut",   "slow", "lag",   "lose", "silence"};
}
// A fault of the link of the rank's node, which only nodes with real links have.
constexpr bool is_of_link(FaultKind kind) {
  return kind == FaultKind::kCut || kind == FaultKind::kSlow || kind == FaultKind::kLag ||
         kind == FaultKind::kLose;
}
// Such a fault that acts on single packets.
constexpr bool is_of_packets(FaultKind kind) {
  return kind == FaultKind::kLag || kind == FaultKind::kLose;
}
enum class FaultSide { kInput, kOutput };
constexpr std::array<const char*, 2> names_of(FaultSide) { return {"input", "output"}; }

// A fault that the scenario plants at run time.
struct FaultSpec {
  FaultKind kind = {};
  int64_t rank = 0;
  std::string label;      // calls whose label, silence: tensors whose name contains this text (*
                          // is a wildcard); "" any
  int64_t at_call = 0;    // acts at the k-th matching call, from 0
  std::string op = {};    // "all_reduce", ..; "" any
  std::string axis = {};  // of the call's group; "" any
  int64_t step = 0;       // calls of this training step, silence: from it on; from 1; 0: any
  double seconds = 0.2;   // delay: duration; lag: of each packet, in each direction
  FaultSide side = FaultSide::kInput;  // corrupt: the buffer
  int64_t bit = -1;         // corrupt: counted from the lowest; -1: the lowest bit of the exponent
  int64_t element = -1;     // corrupt: row-major index; -1: the element of largest magnitude
  double gb_per_s = 0.001;  // slow: rate of the link
  double loss = 0.02;       // lose: share of packets, in each direction
  double heal_s = 0;  // faults of links: the link is as before after so many seconds; 0: never
};

struct ExpectSpec {
  Verdict verdict = Verdict::kMatch;     // match, mismatch, refused or failed
  std::string kind;                      // "" any
  std::string tensor;                    // first divergent tensor; "" any
  nlohmann::json collectives = nullptr;  // {axis: {op: count per rank}}; null: not checked
  std::string detector = {};             // the detector that sees it first; "" any
  std::string message = {};              // a part of what is said of the verdict; "" any
  bool nothing_counted = false;  // the loss and all gradients are 0, so that a match is empty
};

// The workloads that every program has: a whole model is trained, scored or run as a policy.
enum class ModelWorkload { kTrain, kLogprobs, kPolicy };
constexpr std::array<const char*, 3> names_of(ModelWorkload) {
  return {"train", "logprobs", "policy"};
}

struct CaseSpec {
  std::string name;                // "tp/llama_tp2_sp[precision=float64]"
  std::string file;                // scenario file or case folder
  int64_t line = 0;                // of the scenario's name, for messages; 0: unknown
  std::string workload = "train";  // a ModelWorkload or a registered name
  bool is(ModelWorkload one) const { return workload == name_of(one); }
  nlohmann::json options = nlohmann::json::object();  // of function-level workloads
  nlohmann::json model;                               // a Hugging Face config.json with all sizes
  std::string weights_folder;                         // "" : seeded weights
  std::string expected_file;                          // expected.safetensors; "" when there is none
  Precision precision = Precision::kFloat64;
  int64_t seed = 0;
  int64_t steps = 1;                       // train: optimizer steps
  std::vector<StageSpec> stages = {};      // policy: in order
  int64_t refit_bytes = int64_t{1} << 30;  // policy: full tensors that a refit holds at a time
  bool colocated = false;          // policy: a refit sends weights through the host's memory
  int64_t lives = 1;               // policy: how often all stages run in one process
  int64_t micro_batch_size = 0;    // per dp rank; 0: the rank's whole share
  bool judged = true;              // false: run without a comparison (bench at scale)
  bool record_activations = true;  // false: gradients, parameters, losses and logprobs only
  int64_t sample_rows = 0;         // rows of dim 0 of each tensor that are compared; 0: all
  DataSpec data;
  BatchingSpec batching;
  LossSpec loss;
  SideLossOptions side_losses = {.balance = -1};  // less than 0: that of config.json
  BiasRule selection_bias = {};                   // of routers
  CapacityRule capacity = {};                     // of experts
  bool replays_routes = false;  // policy: a train stage takes the experts that were scored last
  OptimizerSpec optimizer;
  LossScaleOptions loss_scale;
  WeightInit init = WeightInit::kMaster;
  bool fused_norm = false;  // logprobs: residuals and the norms behind them run in one pass
  double noise_std = 0;     // train: noise on the weights before the first step; 0: none
  std::vector<std::string> frozen = {};  // patterns of parameters that are not trained
  ParallelSpec parallel;
  ReferenceSpec reference = {};
  WorldSpec world;
  std::vector<FaultSpec> faults;
  ExpectSpec expect;
  std::vector<std::string> tags;
  std::string skip;  // why the case is skipped; "": it runs
  // Sentences about given keys without a member, which the case does not need (idle_options.h).
  std::vector<std::string> idle_keys;
  // Where the run writes its full tensors (expected.safetensors names); "": nowhere.
  std::string dump_file;
  // Where the run writes its model as a Hugging Face folder; "": nowhere.
  std::string save_folder = {};
  std::string scratch_folder = {};  // of the ranks of a policy while the case runs; "": in TMPDIR
  int64_t save_file_bytes = int64_t{5} << 30;  // of one file of that model
  std::vector<std::string> backends;           // backends of the scenario; empty: any
};

// With the balancing loss that config.json asks for, where the case does not say it: as in
// transformers, where labels are given (workload train with loss nll), pooled over the layers.
SideLossOptions side_losses_of(const CaseSpec& spec);

nlohmann::json to_json(const CaseSpec& spec);
CaseSpec case_spec_from_json(const nlohmann::json& json);
// The inputs of the golden in canonical form: equal texts mean equal goldens. The mesh, the world,
// expectations and names are not inputs. Weights and batch files count by path, size, inode and the
// times of the last write and change.
std::string golden_key(const CaseSpec& spec);
// Whether the model lies in stages of a pipeline, in some stage of a policy at least.
bool has_stages(const CaseSpec& spec);
// Whether one device's golden has the weights before the first step, "initial.<parameter>": of a
// model in stages, but not of a policy, whose ranks may load others.
bool has_initial(const CaseSpec& spec);

}  // namespace shardproof::sim
