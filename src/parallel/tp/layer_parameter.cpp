#include "parallel/tp/layer_parameter.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "collective/equal_parts.h"

namespace shardproof {
namespace {

at::ScalarType wider_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<int64_t> local_shape(const ParameterSpec& spec, const Communicator& tp) {
  std::vector<int64_t> shape = spec.global_shape;
  if (spec.dim < 0) return shape;
  int64_t length = 0;
  for (const OwnRun& run : own_runs(spec.blocks, tp.rank(), tp.size())) length += run.length;
  shape[static_cast<size_t>(spec.dim)] = length;
  return shape;
}

at::Tensor drawn(const ParameterSpec& spec, const std::vector<int64_t>& shape) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = at::zeros(shape, at::TensorOptions().dtype(wider_of(spec.dtype)));
  if (spec.init) spec.init(values);
  return values;
}

}  // namespace

InitMethod zero_init() {
  return [](const at::Tensor& values) { at::Tensor(values).zero_(); };
}

InitMethod normal_init(int64_t seed, double std_deviation) {
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return [generator, std_deviation](const at::Tensor& values) {
    at::Tensor(values).normal_(0, std_deviation, generator);
  };
}

void set_tp_attributes(LayerParameter& parameter, const TpAttributes& attributes) {
  SHARDPROOF_ASSERT(!parameter.attributes, parameter.name + " has its attributes already");
  parameter.attributes = attributes;
}

TpAttributes tp_attributes(const LayerParameter& parameter) {
  return parameter.attributes.value_or(TpAttributes{});
}

void copy_tp_attributes(LayerParameter& destination, const LayerParameter& source) {
  if (source.attributes) destination.attributes = source.attributes;
}

bool is_not_tp_duplicate(const LayerParameter& parameter, int64_t tp_rank) {
  return tp_attributes(parameter).tensor_parallel || tp_rank == 0;
}

std::vector<OwnRun> own_runs(const std::vector<int64_t>& blocks, int64_t rank, int64_t size) {
  std::vector<OwnRun> runs;
  int64_t block_start = 0, local_start = 0;
  for (const int64_t block : blocks) {
    const int64_t length = divide(block, size, "a cut size");
    runs.push_back({block_start + rank * length, local_start, length});
    block_start += block;
    local_start += length;
  }
  return runs;
}

at::Tensor own_blocks(const at::Tensor& full, int64_t dim, const std::vector<int64_t>& blocks,
                      int64_t rank, int64_t size) {
  std::vector<at::Tensor> pieces;
  for (const OwnRun& run : own_runs(blocks, rank, size)) {
    pieces.push_back(full.narrow(dim, run.global_start, run.length));
  }
  return at::cat(pieces, dim);
}

at::Tensor in_rank_order(const at::Tensor& full, int64_t dim, const std::vector<int64_t>& blocks,
                         int64_t size) {
  if (blocks.size() == 1 || size == 1) return full;
  std::vector<at::Tensor> ranks;
  for (int64_t rank = 0; rank < size; ++rank) {
    ranks.push_back(own_blocks(full, dim, blocks, rank, size));
  }
  return at::cat(ranks, dim);
}

at::Tensor in_full_order(const at::Tensor& by_rank, int64_t dim, const std::vector<int64_t>& blocks,
                         int64_t size) {
  if (blocks.size() == 1 || size == 1) return by_rank;
  const int64_t local = by_rank.size(dim) / size;
  std::vector<at::Tensor> pieces;
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (int64_t rank = 0; rank < size; ++rank) {
      const OwnRun run = own_runs(blocks, rank, size)[block];
      pieces.push_back(by_rank.narrow(dim, rank * local + run.local_start, run.length));
    }
  }
  return at::cat(pieces, dim);
}

std::vector<int64_t> equal_blocks(int64_t size, int64_t stride, std::string_view what) {
  if (stride < 1 || size % stride != 0) {
    throw Error({.kind = ErrorKind::kRefused,
                 .what = fmt::format("{} {} does not split into stride={} equal blocks", what, size,
                                     stride),
                 .fix = "choose a stride that divides it, or give the blocks"});
  }
  return std::vector<int64_t>(static_cast<size_t>(stride), size / stride);
}

LayerParameter make_layer_parameter(const ParameterSpec& spec, const Communicator& tp) {
  LayerParameter parameter{.name = spec.name,
                           .tensor = {},
                           .global_shape = spec.global_shape,
                           .blocks = spec.dim < 0 ? std::vector<int64_t>{} : spec.blocks,
                           .attributes = {}};
  at::Tensor local;
  if (spec.from == InitFrom::kOwnStream && spec.dim >= 0) {
    local = drawn(spec, local_shape(spec, tp));
  } else {
    const at::Tensor master = drawn(spec, spec.global_shape);
    local = spec.dim < 0 ? master : own_blocks(master, spec.dim, spec.blocks, tp.rank(), tp.size());
    if (spec.keep_master) parameter.master = master.to(spec.dtype);
  }
  parameter.tensor = local.to(spec.dtype).clone(at::MemoryFormat::Contiguous).requires_grad_();
  if (spec.dim >= 0) {
    set_tp_attributes(parameter, {.tensor_parallel = true,
                                  .partition_dim = spec.dim,
                                  .partition_stride = static_cast<int64_t>(spec.blocks.size())});
  }
  if (spec.main_gradient) {
    parameter.main_gradient = std::make_shared<MainGradient>(
        MainGradient{.sum = at::zeros_like(local, local.options().dtype(wider_of(spec.dtype)),
                                           at::MemoryFormat::Contiguous)});
  }
  return parameter;
}

}  // namespace shardproof
