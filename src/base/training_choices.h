// Choices of training that scenarios name and the sharded code acts on.
#pragma once

#include <array>

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

enum class OptimizerKind { kAdamW, kSgd };
constexpr std::array<const char*, 2> names_of(OptimizerKind) { return {"AdamW", "SGD"}; }

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

// Where a linear's backward leaves the gradient of its weight (model/main_gradient.h).
enum class GradientPlace { kAutograd, kMain };
constexpr std::array<const char*, 2> names_of(GradientPlace) { return {"autograd", "main"}; }

// Where a linear that tp cuts adds its bias (parallel/tp/bias_after.h).
enum class BiasPlace { kInLayer, kAfter };
constexpr std::array<const char*, 2> names_of(BiasPlace) { return {"in_layer", "after"}; }

// The ranks that read the batch; the others get it from the first of their tp group.
enum class BatchReader { kAll, kFirstOfTp };
constexpr std::array<const char*, 2> names_of(BatchReader) { return {"all", "first_of_tp"}; }

// Which copies of a parameter that several ranks hold count in the norm.
enum class NormCopies {
  kOnce,     // the first one: each element of the full gradient counts once
  kEachOfTp  // that of every tp rank, as in NeMo-RL's get_grad_norm: too large
};
constexpr std::array<const char*, 2> names_of(NormCopies) { return {"once", "each_of_tp"}; }

}  // namespace shardproof
