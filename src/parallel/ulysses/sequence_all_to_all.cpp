#include "parallel/ulysses/sequence_all_to_all.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "collective/kept_communicator.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

struct Dims {
  std::vector<int64_t> scatter, gather;  // per tensor
};

// The parts for rank 0, 1, ... one after the other along a new dim 0.
at::Tensor parts_for_ranks(const at::Tensor& tensor, int64_t scatter_dim, int64_t size) {
  return at::stack(tensor.chunk(size, scatter_dim));
}

at::Tensor together(const at::Tensor& parts, int64_t gather_dim) {
  return at::cat(parts.unbind(0), gather_dim);
}

std::vector<at::Tensor> trade(const std::vector<at::Tensor>& tensors,
                              const std::vector<int64_t>& scatter,
                              const std::vector<int64_t>& gather, Communicator& ulysses,
                              const std::string& label, const char* direction) {
  std::vector<at::Tensor> results;
  std::vector<at::Tensor> sent;
  const auto start = [&](size_t i) {
    sent.push_back(parts_for_ranks(tensors[i], scatter[i], ulysses.size()));
    return ulysses.all_to_all_async(sent.back(), fmt::format("{} {} {}", label, i, direction));
  };
  std::optional<PendingCollective> next = start(0);
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::optional<PendingCollective> last = std::move(next);
    next.reset();
    if (i + 1 < tensors.size()) next = start(i + 1);
    results.push_back(together(last->wait(), gather[i]));
  }
  return results;
}

struct TradeFunction : Function<TradeFunction> {
  static std::vector<at::Tensor> forward(FunctionContext* ctx, at::TensorList tensors,
                                         const Dims& dims, Communicator* ulysses,
                                         const std::string& label) {
    ctx->saved_data["scatter"] = dims.scatter;
    ctx->saved_data["gather"] = dims.gather;
    ctx->saved_data["axis"] = keep_communicator(*ulysses);
    ctx->saved_data["label"] = label;
    return trade(tensors.vec(), dims.scatter, dims.gather, *ulysses, label, "forward");
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "an all-to-all has no second derivative");
    auto& saved = ctx->saved_data;
    std::vector<at::Tensor> results =
        trade(grads, saved["gather"].toIntVector(), saved["scatter"].toIntVector(),
              kept_communicator(saved["axis"]), saved["label"].toStringRef(), "backward");
    results.resize(results.size() + 3);  // the arguments that are not tensors
    return results;
  }
};

int64_t front_dim(const at::Tensor& tensor, int64_t dim) {
  const int64_t resolved = dim < 0 ? dim + tensor.dim() : dim;
  SHARDPROOF_ASSERT(resolved >= 0 && resolved < tensor.dim(),
                    fmt::format("dim {} of {}", dim, tensor.dim()));
  return resolved;
}

void check_divides(const at::Tensor& tensor, int64_t dim, size_t index, int64_t size) {
  if (tensor.size(dim) % size == 0) return;
  throw_refused(fmt::format("dim {} of tensor {} has {} entries, which {} Ulysses ranks "
                            "cannot share",
                            dim, index, tensor.size(dim), size),
                "choose a Ulysses size that divides it, or repeat the entries");
}

}  // namespace

std::vector<at::Tensor> sequence_all_to_all(const std::vector<DimTrade>& trades,
                                            Communicator& ulysses, std::string_view label) {
  SHARDPROOF_ASSERT(!trades.empty(), "an all-to-all of no tensor");
  std::vector<at::Tensor> tensors;
  Dims dims;
  for (size_t i = 0; i < trades.size(); ++i) {
    tensors.push_back(trades[i].tensor);
    dims.scatter.push_back(front_dim(trades[i].tensor, trades[i].scatter_dim));
    dims.gather.push_back(front_dim(trades[i].tensor, trades[i].gather_dim));
    check_divides(tensors[i], dims.scatter[i], i, ulysses.size());
  }
  if (ulysses.size() == 1) return tensors;
  return TradeFunction::apply(at::TensorList(tensors), dims, &ulysses, std::string(label));
}

}  // namespace shardproof
