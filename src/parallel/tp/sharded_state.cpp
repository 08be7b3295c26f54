#include "parallel/tp/sharded_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {
namespace {

using Sizes = std::vector<int64_t>;

Sizes with_prepended(const StateKey& key, const Sizes& own, bool offsets) {
  Sizes sizes;
  for (const PrependedAxis& axis : key.prepended) sizes.push_back(offsets ? axis.index : axis.size);
  sizes.insert(sizes.end(), own.begin(), own.end());
  return sizes;
}

at::Tensor with_front_ones(at::Tensor tensor, size_t count) {
  for (size_t i = 0; i < count; ++i) tensor = tensor.unsqueeze(0);
  return tensor;
}

struct Run {
  at::Tensor view;
  Sizes offset;  // in the full tensor, without prepended axes
};

std::vector<Run> runs_of(const LayerParameter& parameter, const Communicator& tp) {
  const at::Tensor local = parameter.tensor.detach();
  Sizes origin(static_cast<size_t>(local.dim()), 0);
  if (parameter.blocks.empty()) return {{local, origin}};
  const int64_t dim = tp_attributes(parameter).partition_dim;
  std::vector<Run> runs;
  for (const OwnRun& run : own_runs(parameter.blocks, tp.rank(), tp.size())) {
    Sizes offset = origin;
    offset[static_cast<size_t>(dim)] = run.global_start;
    runs.push_back({local.narrow(dim, run.local_start, run.length), offset});
  }
  return runs;
}

[[noreturn]] void bad_state(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = std::move(what), .fix = std::move(fix)});
}

// Copies what `saved` holds of the box of `target` at `offset`; how many elements that were.
int64_t copy_overlap(const ShardedTensor& saved, const at::Tensor& target, const Sizes& offset) {
  at::Tensor from = saved.data, to = target;
  for (size_t dim = 0; dim < offset.size(); ++dim) {
    const auto axis = static_cast<int64_t>(dim);
    const int64_t begin = std::max(offset[dim], saved.global_offset[dim]);
    const int64_t end =
        std::min(offset[dim] + target.size(axis), saved.global_offset[dim] + saved.data.size(axis));
    if (begin >= end) return 0;
    from = from.narrow(axis, begin - saved.global_offset[dim], end - begin);
    to = to.narrow(axis, begin - offset[dim], end - begin);
  }
  to.copy_(from);
  return to.numel();
}

// How many elements of the box lie inside a full tensor of `shape`.
int64_t inside(const at::Tensor& box, const Sizes& offset, const Sizes& shape) {
  int64_t count = 1;
  for (size_t dim = 0; dim < offset.size(); ++dim) {
    const int64_t end = std::min(offset[dim] + box.size(static_cast<int64_t>(dim)), shape[dim]);
    count *= std::max<int64_t>(0, end - offset[dim]);
  }
  return count;
}

std::vector<const ShardedTensor*> of_key(const ShardedState& saved, const std::string& key) {
  std::vector<const ShardedTensor*> found;
  std::vector<std::string> names;
  for (const ShardedTensor& tensor : saved) {
    names.push_back(tensor.key);
    if (tensor.key == key && tensor.main_replica()) found.push_back(&tensor);
  }
  if (found.empty()) {
    const std::string near = nearest_name(key, names);
    bad_state(fmt::format("the checkpoint has no '{}'", key),
              near.empty() ? "check the prefix" : fmt::format("did you mean '{}'?", near));
  }
  return found;
}

// Dim 0 of the tensor itself may differ where the key allows it.
void check_shape(const ShardedTensor& saved, const Sizes& shape, const StateKey& key) {
  Sizes allowed = shape;
  const size_t rows = key.prepended.size();
  if (key.allow_shape_mismatch && saved.global_shape.size() == shape.size()) {
    allowed[rows] = saved.global_shape[rows];
  }
  if (saved.global_shape == allowed) return;
  bad_state(fmt::format("'{}' has shape [{}] in the checkpoint and [{}] here", saved.key,
                        fmt::join(saved.global_shape, ","), fmt::join(shape, ",")),
            "load it into a layer of that size");
}

}  // namespace

void append_sharded(ShardedState& state, const LayerParameter& parameter, const StateKey& key,
                    const Communicator& tp) {
  if (key.form == RunForm::kPerRank && parameter.blocks.size() > 1 && tp.size() > 1) {
    throw Error(
        {.kind = ErrorKind::kRefused,
         .what = fmt::format("'{}{}' has stride {}: over {} ranks its part is no one run of "
                             "the full tensor, so it could not be loaded at another tp size",
                             key.prefix, parameter.name, parameter.blocks.size(), tp.size()),
         .fix = "save one run per block"});
  }
  const bool cut = !parameter.blocks.empty();
  for (const Run& run : runs_of(parameter, tp)) {
    state.push_back({.key = key.prefix + parameter.name,
                     .data = with_front_ones(run.view, key.prepended.size()),
                     .global_shape = with_prepended(key, parameter.global_shape, false),
                     .global_offset = with_prepended(key, run.offset, true),
                     .replica_id = {0, cut ? 0 : tp.rank(), key.data_parallel_rank},
                     .allow_shape_mismatch = key.allow_shape_mismatch});
  }
}

void load_sharded(const ShardedState& saved, LayerParameter& parameter, const StateKey& key,
                  const Communicator& tp) {
  const at::NoGradGuard no_grad;
  const auto pieces = of_key(saved, key.prefix + parameter.name);
  const Sizes shape = with_prepended(key, parameter.global_shape, false);
  for (const ShardedTensor* piece : pieces) check_shape(*piece, shape, key);
  for (const Run& run : runs_of(parameter, tp)) {
    const at::Tensor target = with_front_ones(run.view, key.prepended.size());
    const Sizes offset = with_prepended(key, run.offset, true);
    const int64_t wanted = inside(target, offset, pieces.front()->global_shape);
    if (wanted < target.numel()) target.zero_();
    int64_t copied = 0;
    for (const ShardedTensor* piece : pieces) copied += copy_overlap(*piece, target, offset);
    if (copied != wanted) {
      bad_state(fmt::format("'{}': of the {} elements at offset [{}] the checkpoint holds {}",
                            pieces.front()->key, wanted, fmt::join(offset, ","), copied),
                "give the parts of all ranks that saved it, each once");
    }
  }
}

}  // namespace shardproof
