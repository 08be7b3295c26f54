// Choices and constants of training that scenarios name and the sharded code acts on.
#pragma once

#include <array>
#include <cstdint>

#include "base/enum_names.h"

namespace shardproof {

// kPreference: samples 2i (chosen) and 2i+1 (rejected) are a pair (Rafailov et al., 2305.18290).
enum class LossKind { kNll, kClippedPolicyGradient, kPreference };
constexpr std::array<const char*, 3> names_of(LossKind) {
  return {"nll", "clipped_pg", "preference"};
}

// kPreference: a sequence's logprob is the sum over its counted tokens, or their mean.
enum class LossNormalization { kToken, kSequence };
constexpr std::array<const char*, 2> names_of(LossNormalization) { return {"token", "sequence"}; }

struct LossOptions {
  LossKind kind = LossKind::kNll;
  LossNormalization normalization = LossNormalization::kToken;
  double clip_eps = 0.2;  // kClippedPolicyGradient: the ratio is clamped to 1 +- clip_eps
  double kl_beta = 0.01;  // weight of the KL term; kPreference: weight of the margin
};

// Of dynamic loss scaling (train/loss_scale.h), with the constants of torch.amp.GradScaler.
struct LossScaleOptions {
  bool enabled = false;
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // the scale grows after so many steps without an overflow
};

// kMuon: Muon for the matrices of hidden layers (Parameter::matrix_rows), AdamW for the others.
enum class OptimizerKind { kAdamW, kSgd, kMuon };
constexpr std::array<const char*, 3> names_of(OptimizerKind) { return {"AdamW", "SGD", "Muon"}; }

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 1e-3;
  double beta1 = 0.9;    // AdamW
  double beta2 = 0.999;  // AdamW
  double eps = 1e-8;     // AdamW
  // AdamW, Muon: decoupled (Loshchilov and Hutter); SGD: added to the gradient.
  double weight_decay = 0.01;
  double momentum = 0.0;   // SGD, Muon
  double dampening = 0.0;  // SGD: of the gradient that joins the momentum, from the second step on
  // SGD, Muon: a step ahead along the momentum; SGD requires dampening 0, as in PyTorch.
  bool nesterov = false;
};

// torch.optim.lr_scheduler
enum class ScheduleKind { kConstant, kLinear, kCosine, kLambda };
constexpr std::array<const char*, 4> names_of(ScheduleKind) {
  return {"ConstantLR", "LinearLR", "CosineAnnealingLR", "LambdaLR"};
}

enum class BatchingKind { kFixed, kPacked, kDynamic };
constexpr std::array<const char*, 3> names_of(BatchingKind) {
  return {"fixed", "packed", "dynamic"};
}

enum class PackAlgorithm { kFirstFitDecreasing, kBalanced };
constexpr std::array<const char*, 2> names_of(PackAlgorithm) {
  return {"first_fit_decreasing", "balanced"};
}

// How the samples of a dp rank become microbatches (train/batching.h).
struct BatchingOptions {
  BatchingKind kind = BatchingKind::kFixed;
  int64_t micro_batch_size = 0;  // kFixed; <= 0: the rank's whole share
  // kPacked: positions of a row; kDynamic: rows times their length. <= 0: the whole share.
  int64_t token_budget = 0;
  PackAlgorithm algorithm = PackAlgorithm::kFirstFitDecreasing;  // kPacked
  int64_t length_round = 1;  // kDynamic: the row length is rounded up to a multiple of this
};

enum class DataParallelKind { kReplicate, kFsdp, kHybrid };
constexpr std::array<const char*, 3> names_of(DataParallelKind) {
  return {"replicate", "fsdp", "hybrid"};
}

// How cp cuts a sequence (sequence/sequence_layout.h). No scenario chooses kRow.
enum class ContextLayout { kContiguous, kZigzag, kRow };
constexpr std::array<const char*, 3> names_of(ContextLayout) {
  return {"contiguous", "zigzag", "row"};
}

// How cp ranks exchange keys and values (parallel/cp/rotation.h).
enum class Rotation { kSendRecv, kAllToAll, kAllGather };
constexpr std::array<const char*, 3> names_of(Rotation) {
  return {"send_recv", "all_to_all", "all_gather"};
}

// Parts of a layer that the backward recomputes.
enum class CheckpointedRegions { kNone, kMlp, kLayer };
constexpr std::array<const char*, 3> names_of(CheckpointedRegions) {
  return {"none", "mlp", "layer"};
}

// Outputs that the forward frees and the backward computes again (train/discarded_outputs.h).
enum class DiscardedOutputs { kNone, kNorms, kActivations, kBoth };
constexpr std::array<const char*, 4> names_of(DiscardedOutputs) {
  return {"none", "norms", "activations", "both"};
}

// Where a linear's backward leaves the gradient of its weight (model/main_gradient.h).
enum class GradientPlace { kAutograd, kMain };
constexpr std::array<const char*, 2> names_of(GradientPlace) { return {"autograd", "main"}; }

// How the first values of matrices come about (parallel/tp/stream_init.h).
enum class WeightInit { kMaster, kOwnStream };
constexpr std::array<const char*, 2> names_of(WeightInit) { return {"master", "own_stream"}; }

// Where a linear that tp cuts adds its bias (BiasAfter in parallel/tp/style.cpp).
enum class BiasPlace { kInLayer, kAfter };
constexpr std::array<const char*, 2> names_of(BiasPlace) { return {"in_layer", "after"}; }

// The ranks that read the batch; the others get it from the first of their tp group.
enum class BatchReader { kAll, kFirstOfTp };
constexpr std::array<const char*, 2> names_of(BatchReader) { return {"all", "first_of_tp"}; }

// kKnown: both ends of a boundary compute the shape of each microbatch. kExchanged: the sizes are a
// message of their own before the tensor. Its receiver waits for it before it posts the receive of
// the tensor.
enum class BoundaryShapes { kKnown, kExchanged };
constexpr std::array<const char*, 2> names_of(BoundaryShapes) { return {"known", "exchanged"}; }

// The order in which a rank of a pipeline works on its microbatches (src/parallel/pp/tables.h).
enum class PipelineSchedule { kGPipe, k1F1B, kInterleaved, kBreadthFirst, kZb1p, kZbV, kDualPipeV };
constexpr std::array<const char*, 7> names_of(PipelineSchedule) {
  return {"gpipe", "1f1b", "interleaved", "bfs", "zb1p", "zbv", "dualpipev"};
}

// How the rows of experts reach the ranks that hold them (src/parallel/experts/dispatch.h).
enum class ExpertDispatch { kAllToAll, kAllGather };
constexpr std::array<const char*, 2> names_of(ExpertDispatch) {
  return {"all_to_all", "all_gather"};
}

// Which copies of a parameter that several ranks hold count in the norm.
enum class NormCopies {
  kOnce,     // the first one: each element of the full gradient counts once
  kEachOfTp  // that of every tp rank, as in NeMo-RL's get_grad_norm: too large
};
constexpr std::array<const char*, 2> names_of(NormCopies) { return {"once", "each_of_tp"}; }

}  // namespace shardproof
