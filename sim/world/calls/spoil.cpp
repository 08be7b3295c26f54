#include "sim/world/calls/spoil.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/count_of.h"
#include "base/error.h"
#include "sim/case/names.h"

namespace shardproof::sim::world {
namespace {

// --- Where a fault can act
bool contributes(const FaultSpec&, const Call& call) {
  if (call.op == Op::kRecv || call.op == Op::kBarrier) return false;
  const bool from_root = call.op == Op::kBroadcast || call.op == Op::kScatter;
  if (from_root && call.root != call.group_rank) return false;
  return call.bytes > 0;
}

bool contributes_to_sum(const FaultSpec& fault, const Call& call) {
  const bool sums = call.reduce == ReduceOp::kSum || call.reduce == ReduceOp::kAvg;
  return contributes(fault, call) && sums;
}

bool receives(const Call& call) {
  if (call.op == Op::kSend || call.op == Op::kBarrier) return false;
  return call.op != Op::kGather || call.root == call.group_rank;
}

bool has_side(const FaultSpec& fault, const Call& call) {
  return fault.side == FaultSide::kOutput ? receives(call) : contributes(fault, call);
}

// --- What it does
int64_t count_of(const Tensors& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

// Where one of the elements of all tensors lies.
struct Place {
  at::Tensor tensor;  // undefined: there are not so many
  std::vector<int64_t> index;
};

Place place_of(const Tensors& tensors, int64_t element) {
  for (const at::Tensor& tensor : tensors) {
    if (element >= tensor.numel()) {
      element -= tensor.numel();
      continue;
    }
    Place place{tensor, std::vector<int64_t>(static_cast<size_t>(tensor.dim()))};
    for (int64_t dim = tensor.dim(); dim-- > 0; element /= tensor.size(dim)) {
      place.index[static_cast<size_t>(dim)] = element % tensor.size(dim);
    }
    return place;
  }
  return {};
}

// As a view of shape [].
at::Tensor element_at(Place place) {
  for (const int64_t index : place.index) place.tensor = place.tensor.select(0, index);
  return place.tensor;
}

// Bool of the tensor's shape: which elements are of no token. Undefined where dims 0 and 1 are not
// those of the token map.
at::Tensor padding_of(const at::Tensor& tensor, const at::Tensor& token_map) {
  const bool fits = token_map.defined() && tensor.dim() >= token_map.dim() &&
                    tensor.sizes().slice(0, token_map.dim()) == token_map.sizes();
  if (!fits) return {};
  at::Tensor padding = token_map.cpu() < 0;
  while (padding.dim() < tensor.dim()) padding = padding.unsqueeze(-1);
  return padding.expand(tensor.sizes());
}

// The element of the largest magnitude among those of tokens; among all if there are no others.
int64_t largest(const Tensors& tensors, const at::Tensor& token_map) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor magnitude = tensor.to(at::kCPU, at::kDouble).abs();
    const at::Tensor padding = padding_of(tensor, token_map);
    flat.push_back((padding.defined() ? magnitude.masked_fill(padding, -1) : magnitude).flatten());
  }
  return at::cat(flat).argmax().item<int64_t>();
}

// "; element [3, 12, 0] is padding" for an element that no comparison reads, else "".
std::string padding_text(const Place& place, const at::Tensor& token_map) {
  const at::Tensor padding = padding_of(place.tensor, token_map);
  if (!padding.defined() || !element_at({padding, place.index}).item<bool>()) return "";
  return fmt::format("; element [{}] is padding", fmt::join(place.index, ", "));
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

std::string zero(const FaultSpec&, const Tensors& tensors, const Surroundings&) {
  for (const at::Tensor& tensor : tensors) tensor.zero_();
  return fmt::format("its {} became {}", shardproof::count_of(count_of(tensors), "element"),
                     count_of(tensors) == 1 ? "zero" : "zeros");
}

std::string twice(const FaultSpec&, const Tensors& tensors, const Surroundings&) {
  for (const at::Tensor& tensor : tensors) tensor.add_(tensor.clone());
  return fmt::format("its {} counted twice", shardproof::count_of(count_of(tensors), "element"));
}

std::string flip_bit(const FaultSpec& fault, const Tensors& tensors, const Surroundings& around) {
  const int64_t count = count_of(tensors);
  if (fault.element >= count || count == 0) {
    throw_bad_input(fmt::format("there is no element {} in a buffer of {}", fault.element, count),
                    "choose a smaller element, or another call");
  }
  const int64_t element = fault.element < 0 ? largest(tensors, around.token_map) : fault.element;
  const Place place = place_of(tensors, element);
  const at::Tensor target = element_at(place);
  const auto bits = static_cast<int64_t>(8 * target.element_size());
  const int64_t bit = fault.bit < 0 ? default_bit(target.scalar_type()) : fault.bit;
  if (bit >= bits) {
    throw_bad_input(fmt::format("there is no bit {} in {} bits", bit, bits),
                    "choose a smaller bit");
  }
  const at::Tensor copy = target.to(at::kCPU, target.scalar_type(), false, true);
  const auto before = copy.item().toDouble();
  auto* bytes = static_cast<uint8_t*>(copy.data_ptr());
  bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ (1U << (bit % 8)));
  target.copy_(copy);
  return fmt::format("{} bit {} of element {}: {:.9g} became {:.9g}{}", fault.side, bit, element,
                     before, copy.item().toDouble(), padding_text(place, around.token_map));
}

std::string outdate(const FaultSpec&, const Tensors& tensors, const Surroundings& around) {
  const Tensors& before = around.before;
  bool alike = tensors.size() == before.size();
  for (size_t i = 0; alike && i < tensors.size(); ++i) {
    alike = tensors[i].sizes() == before[i].sizes() &&
            tensors[i].scalar_type() == before[i].scalar_type();
  }
  if (!alike) {
    throw_bad_input(
        fmt::format("the matching call before it sent {}, this one sends {}",
                    shardproof::count_of(count_of(before), "element"), count_of(tensors)),
        "select calls of one shape, by label or op");
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(before[i]);
  return "the buffer of the matching call before it was sent again";
}

struct Spoiler {
  FaultKind kind;
  bool (*can)(const FaultSpec& fault, const Call& call);
  std::string (*change)(const FaultSpec& fault, const Tensors& tensors, const Surroundings& around);
};

constexpr Spoiler kSpoilers[] = {
    {FaultKind::kDrop, contributes, zero},
    {FaultKind::kDuplicate, contributes_to_sum, twice},
    {FaultKind::kCorrupt, has_side, flip_bit},
    {FaultKind::kStale, contributes, outdate},
};

const Spoiler* spoiler_of(FaultKind kind) {
  for (const Spoiler& spoiler : kSpoilers) {
    if (spoiler.kind == kind) return &spoiler;
  }
  return nullptr;
}

// Whether the fault can act at the call on this rank. Faults that change no tensor can act at every
// call.
bool can_spoil(const FaultSpec& fault, const Call& call) {
  const Spoiler* spoiler = spoiler_of(fault.kind);
  return spoiler == nullptr || spoiler->can(fault, call);
}

}  // namespace

bool occurs_in(std::string_view text, std::string_view pattern) {
  size_t from = 0;
  while (!pattern.empty()) {
    const size_t star = std::min(pattern.find('*'), pattern.size());
    const size_t found = text.find(pattern.substr(0, star), from);
    if (found == std::string_view::npos) return false;
    from = found + star;
    pattern.remove_prefix(std::min(star + 1, pattern.size()));
  }
  return true;
}

bool concerns(const FaultSpec& fault, const Call& call, int64_t step) {
  const std::string_view group = call.group;
  return (fault.op.empty() || fault.op == name_of(call.op)) &&
         (fault.axis.empty() || group_of_axis(fault.axis) == group.substr(0, group.find('['))) &&
         (fault.step == 0 || fault.step == step) && occurs_in(call.label, fault.label) &&
         can_spoil(fault, call);
}

std::string spoil(const FaultSpec& fault, const Tensors& tensors, const Surroundings& around) {
  const Spoiler* spoiler = spoiler_of(fault.kind);
  SHARDPROOF_ASSERT(spoiler != nullptr, "a fault that changes tensors");
  Tensors before;
  for (const at::Tensor& tensor : tensors) before.push_back(tensor.clone());
  const std::string effect = spoiler->change(fault, tensors, around);
  const bool flips = fault.kind == FaultKind::kCorrupt;  // a bit, which may be the sign of 0
  if (!flips &&
      std::equal(tensors.begin(), tensors.end(), before.begin(),
                 [](const at::Tensor& now, const at::Tensor& then) { return now.equal(then); })) {
    throw_bad_input(effect + ", which changed nothing",
                    fault.kind == FaultKind::kStale
                        ? "choose a call whose data differ from those before, by label or at_call"
                        : "choose a call at which the rank's part is not 0, by label, step or "
                          "at_call");
  }
  return effect;
}

}  // namespace shardproof::sim::world
