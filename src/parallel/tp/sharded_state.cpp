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

struct Box {
  Sizes offset, sizes;
};

Box box_of(const ShardedTensor& saved) { return {saved.global_offset, saved.data.sizes().vec()}; }

// The elements that both boxes have; of size 0 where there are none.
Box intersection(const Box& a, const Box& b) {
  Box both;
  for (size_t dim = 0; dim < a.offset.size(); ++dim) {
    const int64_t begin = std::max(a.offset[dim], b.offset[dim]);
    const int64_t end = std::min(a.offset[dim] + a.sizes[dim], b.offset[dim] + b.sizes[dim]);
    both.offset.push_back(begin);
    both.sizes.push_back(std::max<int64_t>(0, end - begin));
  }
  return both;
}

int64_t shared_elements(const Box& a, const Box& b) {
  return c10::multiply_integers(intersection(a, b).sizes);
}

at::Tensor part_of(at::Tensor tensor, const Sizes& offset, const Box& box) {
  for (size_t dim = 0; dim < offset.size(); ++dim) {
    tensor =
        tensor.narrow(static_cast<int64_t>(dim), box.offset[dim] - offset[dim], box.sizes[dim]);
  }
  return tensor;
}

// Copies what `saved` holds of the box of `target`.
void copy_overlap(const ShardedTensor& saved, const at::Tensor& target, const Box& box) {
  const Box both = intersection(box_of(saved), box);
  if (c10::multiply_integers(both.sizes) == 0) return;
  part_of(target, box.offset, both).copy_(part_of(saved.data, saved.global_offset, both));
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
  const size_t dims = saved.global_shape.size();
  if (saved.global_offset.size() != dims || saved.data.sizes().size() != dims) {
    bad_state(fmt::format("'{}' has a part of shape [{}] at offset [{}] of shape [{}]", saved.key,
                          fmt::join(saved.data.sizes(), ","), fmt::join(saved.global_offset, ","),
                          fmt::join(saved.global_shape, ",")),
              "give all three the same number of dims");
  }
  if (saved.global_shape == allowed) return;
  bad_state(fmt::format("'{}' has shape [{}] in the checkpoint and [{}] here", saved.key,
                        fmt::join(saved.global_shape, ","), fmt::join(shape, ",")),
            "load it into a layer of that size");
}

// Where the blocks of a tensor of another size begin nobody knows.
void check_blocks(const LayerParameter& parameter, const Sizes& saved, const Sizes& here,
                  const std::string& name) {
  if (parameter.blocks.size() < 2 || saved == here) return;
  bad_state(
      fmt::format("'{}' has {} blocks, and shape [{}] in the checkpoint where it has [{}] here: "
                  "its blocks begin elsewhere there",
                  name, parameter.blocks.size(), fmt::join(saved, ","), fmt::join(here, ",")),
      "load it into a layer of that size, or save one tensor per block");
}

// An element that two pieces hold would be counted twice, in the place of one that none holds.
void check_held_once(const std::vector<const ShardedTensor*>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const int64_t twice = shared_elements(box_of(*pieces[i]), box_of(*pieces[j]));
      if (twice == 0) continue;
      bad_state(
          fmt::format("'{}': {} elements are in the checkpoint twice, at offset [{}] and [{}]",
                      pieces[i]->key, twice, fmt::join(pieces[j]->global_offset, ","),
                      fmt::join(pieces[i]->global_offset, ",")),
          "give the parts of all ranks that saved it, each once");
    }
  }
}

// `wanted`: the box within the saved shape.
void check_complete(const std::vector<const ShardedTensor*>& pieces, const std::string& key,
                    const Box& wanted) {
  int64_t held = 0;
  for (const ShardedTensor* piece : pieces) held += shared_elements(box_of(*piece), wanted);
  const int64_t elements = c10::multiply_integers(wanted.sizes);
  if (held == elements) return;
  bad_state(fmt::format("'{}': of the {} elements at offset [{}] the checkpoint holds {}", key,
                        elements, fmt::join(wanted.offset, ","), held),
            "give the parts of all ranks that saved it, each once");
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
  const std::string name = key.prefix + parameter.name;
  const auto all = of_key(saved, name);
  const Sizes shape = with_prepended(key, parameter.global_shape, false);
  for (const ShardedTensor* piece : all) check_shape(*piece, shape, key);
  const Sizes saved_shape = all.front()->global_shape;
  check_blocks(parameter, saved_shape, shape, name);
  const Box stack{Sizes(shape.size(), 0), saved_shape};
  Box layer{with_prepended(key, Sizes(parameter.global_shape.size(), 0), true), saved_shape};
  std::fill_n(layer.sizes.begin(), key.prepended.size(), 1);
  std::vector<const ShardedTensor*> pieces;  // those of this layer
  for (const ShardedTensor* piece : all) {
    if (shared_elements(box_of(*piece), layer) > 0) pieces.push_back(piece);
  }
  check_held_once(pieces);
  std::vector<std::pair<at::Tensor, Box>> targets;
  for (const Run& run : runs_of(parameter, tp)) {
    const at::Tensor target = with_front_ones(run.view, key.prepended.size());
    targets.emplace_back(target, Box{with_prepended(key, run.offset, true), target.sizes().vec()});
    check_complete(pieces, name, intersection(targets.back().second, stack));
  }
  for (const auto& [target, box] : targets) {
    if (shared_elements(box, stack) < target.numel()) target.zero_();
    for (const ShardedTensor* piece : pieces) copy_overlap(*piece, target, box);
  }
}

}  // namespace shardproof
