#include "sim/world/calls/spoil.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"

namespace shardproof::sim {
namespace {

int64_t count_of(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

[[noreturn]] void cannot(const std::string& what, const std::string& fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = what, .fix = fix});
}

// One element as a view of shape [].
at::Tensor element_at(const std::vector<at::Tensor>& tensors, int64_t element) {
  for (const at::Tensor& tensor : tensors) {
    if (element >= tensor.numel()) {
      element -= tensor.numel();
      continue;
    }
    at::Tensor view = tensor;
    for (int64_t left = tensor.numel(); view.dim() > 0;) {
      left /= view.size(0);
      const int64_t index = element / left;
      element %= left;
      view = view.select(0, index);
    }
    return view;
  }
  return {};
}

int64_t largest(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) {
    flat.push_back(tensor.reshape({-1}).to(at::kCPU, at::kDouble));
  }
  return at::cat(flat).abs().argmax().item<int64_t>();
}

int64_t default_bit(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 52;
    case at::kFloat:
      return 23;
    case at::kHalf:
      return 10;
    case at::kBFloat16:
      return 7;
    default:
      return 0;
  }
}

}  // namespace

std::string zero(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) tensor.zero_();
  return fmt::format("its {} elements became zeros", count_of(tensors));
}

std::string twice(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) tensor.add_(tensor.clone());
  return fmt::format("its {} elements counted twice", count_of(tensors));
}

std::string flip_bit(const std::vector<at::Tensor>& tensors, int64_t element, int64_t bit) {
  const int64_t count = count_of(tensors);
  if (element >= count || count == 0) {
    cannot(fmt::format("there is no element {} in a buffer of {}", element, count),
           "choose a smaller element, or another call");
  }
  if (element < 0) element = largest(tensors);
  const at::Tensor target = element_at(tensors, element);
  const auto bits = static_cast<int64_t>(8 * target.element_size());
  if (bit < 0) bit = default_bit(target.scalar_type());
  if (bit >= bits) {
    cannot(fmt::format("there is no bit {} in {} bits", bit, bits), "choose a smaller bit");
  }
  const at::Tensor copy = target.to(at::kCPU, target.scalar_type(), false, true);
  const auto before = copy.item().toDouble();
  auto* bytes = static_cast<uint8_t*>(copy.data_ptr());
  bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ (1U << (bit % 8)));
  target.copy_(copy);
  return fmt::format("bit {} of element {}: {:.9g} became {:.9g}", bit, element, before,
                     copy.item().toDouble());
}

std::string outdate(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& before) {
  bool alike = tensors.size() == before.size();
  for (size_t i = 0; alike && i < tensors.size(); ++i) {
    alike = tensors[i].sizes() == before[i].sizes() &&
            tensors[i].scalar_type() == before[i].scalar_type();
  }
  if (!alike) {
    cannot(fmt::format("the matching call before it sent {} elements, this one sends {}",
                       count_of(before), count_of(tensors)),
           "select calls of one shape, by label or op");
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(before[i]);
  return "the buffer of the matching call before it was sent again";
}

}  // namespace shardproof::sim
