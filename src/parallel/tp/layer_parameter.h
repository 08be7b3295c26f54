// A parameter of a tensor-parallel layer as one rank holds it: its part of the full tensor, how
// that was cut, and where its gradient goes.
//
//   blocks {6, 6}, 3 ranks    full    0 1 2 3 4 5 | 6 7 8 9 10 11     (gate | up)
//                             rank 1      2 3     |     8 9           each block is cut evenly
//
// One block is a plain cut. `stride` equal blocks are Megatron-LM's stride (fused gate and up: 2);
// unequal ones are a fused q, k, v.
//
// Source: Megatron-LM layers.py: the attributes, _initialize_affine_weight_cpu and _gpu.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "parallel/tp/main_gradient.h"

namespace shardproof {

// What others need to know of a parameter's cut. Defaults: not cut.
struct TpAttributes {
  bool tensor_parallel = false;
  int64_t partition_dim = -1;
  int64_t partition_stride = 1;
  bool operator==(const TpAttributes&) const = default;
};

// Fills a tensor with its initial values, in place.
using InitMethod = std::function<void(const at::Tensor&)>;
InitMethod zero_init();
// Each call draws on from one generator of its own, seeded once.
InitMethod normal_init(int64_t seed, double std_deviation);

enum class InitFrom {
  kMaster,    // all ranks draw the full tensor and keep their part: the same for every tp size
  kOwnStream  // each rank draws its part from a stream of its own (a tracker's fork): depends on tp
};

struct LayerParameter {
  std::string name;                        // "weight", "bias"
  at::Tensor tensor;                       // this rank's leaf; detached from the master
  std::vector<int64_t> global_shape;       // of the full tensor
  std::vector<int64_t> blocks;             // of partition_dim; empty: not cut
  std::optional<TpAttributes> attributes;  // unset: defaults
  bool allreduce = true;           // false: an expert's, not averaged over all data parallel ranks
  bool sequence_parallel = false;  // its gradient is this rank's addend: to be summed over tp
  std::shared_ptr<MainGradient> main_gradient = {};  // null: gradients go to .grad
  at::Tensor master = {};                            // kept for tests only
};

// A second set is a mistake of ours (asserted).
void set_tp_attributes(LayerParameter& parameter, const TpAttributes& attributes);
TpAttributes tp_attributes(const LayerParameter& parameter);  // defaults where unset
void copy_tp_attributes(LayerParameter& destination, const LayerParameter& source);
// Whether this rank's copy counts in norms and checkpoints: cut parameters do on every rank, whole
// ones on tp rank 0 alone.
bool is_not_tp_duplicate(const LayerParameter& parameter, int64_t tp_rank);

// One run of indices that a rank holds of a cut dim.
struct OwnRun {
  int64_t global_start = 0, local_start = 0, length = 0;
};
// Of each block. Throws Error(kRefused) with both numbers where a block does not divide by `size`.
std::vector<OwnRun> own_runs(const std::vector<int64_t>& blocks, int64_t rank, int64_t size);
// This rank's part of `full` along `dim`, a fresh tensor.
at::Tensor own_blocks(const at::Tensor& full, int64_t dim, const std::vector<int64_t>& blocks,
                      int64_t rank, int64_t size);
// From the order of the full dim to rank after rank, and back. Differentiable, no communication;
// with one block the tensor itself.
at::Tensor in_rank_order(const at::Tensor& full, int64_t dim, const std::vector<int64_t>& blocks,
                         int64_t size);
at::Tensor in_full_order(const at::Tensor& by_rank, int64_t dim, const std::vector<int64_t>& blocks,
                         int64_t size);
// stride equal blocks of `size`. Throws Error(kRefused) where stride does not divide it.
std::vector<int64_t> equal_blocks(int64_t size, int64_t stride, std::string_view what);

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> global_shape;
  int64_t dim = -1;                  // that is cut; -1: whole on every rank
  std::vector<int64_t> blocks = {};  // of dim
  at::ScalarType dtype = at::ScalarType::Float;
  InitMethod init = {};  // null: zeros
  InitFrom from = InitFrom::kMaster;
  bool keep_master = false;
  bool main_gradient = false;  // with a wide buffer that gradients are accumulated into
};
// The master is drawn in float32, float64 for a float64 parameter, then cut, then rounded.
LayerParameter make_layer_parameter(const ParameterSpec& spec, const Communicator& tp);

}  // namespace shardproof
