#include "collective/mappings.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "base/error.h"
#include "collective/equal_parts.h"
#include "collective/kept_communicator.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

enum class Step : int64_t { kIdentity, kAllReduce, kAllGather, kReduceScatter, kSlice };

// One mapping: its forward and backward, and their axis and dim.
struct Mapping {
  Step forward;
  Step backward;
  Communicator* axis;
  std::string label;
  int64_t dim = 0;
  std::vector<int64_t> sizes = {};
  GatherBuffer* buffer = nullptr;
};

void check_sizes_sum(const at::Tensor& full, const Mapping& mapping) {
  const auto& sizes = mapping.sizes;
  const int64_t sum = c10::sum_integers(sizes);
  if (sum == full.size(mapping.dim)) return;
  throw_bad_input(fmt::format("'{}': parts [{}] come to {}, but dim {} has size {}", mapping.label,
                              fmt::join(sizes, ","), sum, mapping.dim, full.size(mapping.dim)),
                  "give the parts of this tensor");
}

at::Tensor own_part(const at::Tensor& full, const Mapping& mapping) {
  const int64_t rank = mapping.axis->rank();
  if (mapping.sizes.empty()) {
    const int64_t part = divide(full.size(mapping.dim), *mapping.axis,
                                fmt::format("'{}': dim {} of size", mapping.label, mapping.dim));
    return full.narrow(mapping.dim, rank * part, part).clone();
  }
  check_sizes_sum(full, mapping);
  const auto own = mapping.sizes.begin() + rank;
  const int64_t start = c10::sum_integers(mapping.sizes.begin(), own);
  return full.narrow(mapping.dim, start, *own).clone();
}

// Does not write to `tensor`, which may be a gradient that flows elsewhere too. (Megatron-LM
// reduces it in place, and loses the sum of a strided one with the copy that it made for it.)
at::Tensor run(Step step, const at::Tensor& tensor, const Mapping& mapping, const char* direction) {
  const std::string label = mapping.label + direction;
  switch (step) {
    case Step::kIdentity:
      return tensor;
    case Step::kAllReduce:
      return mapping.axis->all_reduce(tensor, ReduceOp::kSum, label);
    case Step::kAllGather:
      return all_gather_in(mapping.buffer, tensor, *mapping.axis, mapping.dim, label,
                           mapping.sizes);
    case Step::kReduceScatter:
      return mapping.axis->reduce_scatter(tensor, mapping.dim, ReduceOp::kSum, label,
                                          mapping.sizes);
    case Step::kSlice:
      return own_part(tensor, mapping);
  }
  SHARDPROOF_ASSERT(false, "unknown step");
  return {};
}

struct MappingFunction : Function<MappingFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& input, const Mapping& mapping) {
    ctx->saved_data["backward"] = static_cast<int64_t>(mapping.backward);
    ctx->saved_data["axis"] = keep_communicator(*mapping.axis);
    ctx->saved_data["label"] = mapping.label;
    ctx->saved_data["dim"] = mapping.dim;
    ctx->saved_data["sizes"] = mapping.sizes;
    ctx->saved_data["buffer"] = reinterpret_cast<int64_t>(mapping.buffer);
    return run(mapping.forward, input, mapping, " forward");
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "collectives have no second derivative");
    auto& saved = ctx->saved_data;
    const Mapping mapping{.forward = Step::kIdentity,
                          .backward = static_cast<Step>(saved["backward"].toInt()),
                          .axis = &kept_communicator(saved["axis"]),
                          .label = saved["label"].toStringRef(),
                          .dim = saved["dim"].toInt(),
                          .sizes = saved["sizes"].toIntVector(),
                          .buffer = reinterpret_cast<GatherBuffer*>(saved["buffer"].toInt())};
    return {run(mapping.backward, grads[0], mapping, " backward"), at::Tensor()};
  }
};

// Applies the pair. Without gradients nothing is saved.
at::Tensor apply(const at::Tensor& input, const Mapping& mapping) {
  if (mapping.axis->size() == 1) return input;
  SHARDPROOF_ASSERT(
      mapping.sizes.empty() || static_cast<int64_t>(mapping.sizes.size()) == mapping.axis->size(),
      "one size per rank of the axis (" + mapping.label + ")");
  return MappingFunction::apply(input, mapping);
}

// The pair of steps along a dim, which may count from the end.
at::Tensor apply_along(const at::Tensor& input, Step forward, Step backward, Communicator& axis,
                       int64_t dim, std::string_view label, const std::vector<int64_t>& sizes,
                       GatherBuffer* buffer = nullptr) {
  const int64_t resolved = dim < 0 ? dim + input.dim() : dim;
  SHARDPROOF_ASSERT(resolved >= 0 && resolved < input.dim(), "no such dim");
  return apply(input, {forward, backward, &axis, std::string(label), resolved, sizes, buffer});
}

}  // namespace

at::Tensor copy_with_all_reduce_backward(const at::Tensor& input, Communicator& axis,
                                         std::string_view label) {
  return apply(input, {.forward = Step::kIdentity,
                       .backward = Step::kAllReduce,
                       .axis = &axis,
                       .label = std::string(label)});
}

at::Tensor all_reduce_with_identity_backward(const at::Tensor& addend, Communicator& axis,
                                             std::string_view label) {
  return apply(addend, {.forward = Step::kAllReduce,
                        .backward = Step::kIdentity,
                        .axis = &axis,
                        .label = std::string(label)});
}

at::Tensor all_gather_with_reduce_scatter_backward(const at::Tensor& local, Communicator& axis,
                                                   int64_t dim, std::string_view label,
                                                   const std::vector<int64_t>& sizes,
                                                   GatherBuffer* buffer) {
  return apply_along(local, Step::kAllGather, Step::kReduceScatter, axis, dim, label, sizes,
                     buffer);
}

at::Tensor all_gather_with_slice_backward(const at::Tensor& local, Communicator& axis, int64_t dim,
                                          std::string_view label,
                                          const std::vector<int64_t>& sizes) {
  return apply_along(local, Step::kAllGather, Step::kSlice, axis, dim, label, sizes);
}

at::Tensor reduce_scatter_with_all_gather_backward(const at::Tensor& addend, Communicator& axis,
                                                   int64_t dim, std::string_view label,
                                                   const std::vector<int64_t>& sizes,
                                                   GatherBuffer* buffer) {
  return apply_along(addend, Step::kReduceScatter, Step::kAllGather, axis, dim, label, sizes,
                     buffer);
}

at::Tensor slice_with_all_gather_backward(const at::Tensor& full, Communicator& axis, int64_t dim,
                                          std::string_view label,
                                          const std::vector<int64_t>& sizes) {
  return apply_along(full, Step::kSlice, Step::kAllGather, axis, dim, label, sizes);
}

}  // namespace shardproof
