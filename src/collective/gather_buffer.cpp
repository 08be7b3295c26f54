#include "collective/gather_buffer.h"

#include <ATen/ATen.h>
#include <c10/util/strides.h>

#include <algorithm>

namespace shardproof {
namespace {

// The buffer is one user of its storage; every tensor on it is another.
bool is_free(const c10::Storage& memory) { return memory.use_count() == 1; }

std::vector<int64_t> gathered_shape(const at::Tensor& local, int64_t dim, const Communicator& axis,
                                    const std::vector<int64_t>& sizes) {
  std::vector<int64_t> shape = local.sizes().vec();
  int64_t& size = shape[static_cast<size_t>(dim < 0 ? dim + local.dim() : dim)];
  size = sizes.empty() ? size * axis.size() : c10::sum_integers(sizes);
  return shape;
}

}  // namespace

at::Tensor GatherBuffer::lend(at::IntArrayRef shape, const at::Tensor& like) {
  const at::NoGradGuard no_grad;
  const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(like.element_size());
  const auto fits = [&](const c10::Storage& memory) {
    return memory.device() == like.device() && static_cast<int64_t>(memory.nbytes()) >= bytes;
  };
  // Takes the smallest free memory that is large enough; if none is, replaces one of them.
  c10::Storage* best = nullptr;
  for (c10::Storage& memory : memories_) {
    if (!is_free(memory) || !fits(memory)) continue;
    if (best == nullptr || memory.nbytes() < best->nbytes()) best = &memory;
  }
  if (best == nullptr) {
    const auto small = std::find_if(memories_.begin(), memories_.end(), is_free);
    if (small != memories_.end()) memories_.erase(small);
    memories_.push_back(at::empty({bytes}, like.options().dtype(at::kByte)).storage());
    best = &memories_.back();
  }
  at::Tensor lent = at::empty({0}, like.options().requires_grad(false));
  return lent.set_(*best, 0, shape, c10::contiguous_strides(shape));
}

int64_t GatherBuffer::in_use() const {
  return std::count_if(memories_.begin(), memories_.end(),
                       [](const c10::Storage& memory) { return !is_free(memory); });
}

int64_t GatherBuffer::bytes() const {
  int64_t sum = 0;
  for (const c10::Storage& memory : memories_) sum += static_cast<int64_t>(memory.nbytes());
  return sum;
}

at::Tensor all_gather_in(GatherBuffer* buffer, const at::Tensor& local, Communicator& axis,
                         int64_t dim, std::string_view label, const std::vector<int64_t>& sizes) {
  if (buffer == nullptr || axis.size() == 1) return axis.all_gather(local, dim, label, sizes);
  const at::Tensor into = buffer->lend(gathered_shape(local, dim, axis, sizes), local);
  return axis.all_gather_into(into, local, dim, label, sizes);
}

PendingCollective all_gather_async_in(GatherBuffer* buffer, const at::Tensor& local,
                                      Communicator& axis, int64_t dim, std::string_view label,
                                      const std::vector<int64_t>& sizes) {
  if (buffer == nullptr || axis.size() == 1) {
    return axis.all_gather_async(local, dim, label, sizes);
  }
  const at::Tensor into = buffer->lend(gathered_shape(local, dim, axis, sizes), local);
  return axis.all_gather_into_async(into, local, dim, label, sizes);
}

}  // namespace shardproof
