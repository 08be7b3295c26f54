#include "sim/uses/validate/planted.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/seed.h"

namespace shardproof::sim::validate {
namespace {

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void flip(at::Tensor& bytes, int64_t element, int64_t element_bytes, int64_t bit) {
  if (bit < 0) bit = 8 * element_bytes - 2;  // of a float, the highest bit of the exponent
  if (bit >= 8 * element_bytes) bit %= 8 * element_bytes;
  auto* byte = bytes.data_ptr<uint8_t>() + element * element_bytes + bit / 8;
  *byte = static_cast<uint8_t>(*byte ^ (1U << (bit % 8)));
}

// The first wrong element, and by how much the next ones follow, and how many there are at most.
struct Positions {
  int64_t first, stride, most;
};

Positions positions_of(const PlantedFault& fault, int64_t count, int64_t element_bytes) {
  const int64_t sector = 32 / element_bytes;
  switch (fault.pattern) {
    case PlantedPattern::kElement:
      return {fault.first % count, 1, 1};
    case PlantedPattern::kSector:
      return {fault.first % count / sector * sector, 1, sector};
    case PlantedPattern::kLane:
      return {fault.first % fault.stride, fault.stride, count};
    case PlantedPattern::kAll:
      return {0, 1, count};
  }
  return {};
}

}  // namespace

bool acts_on(const PlantedFault& fault, Stage stage, int64_t rank,
             const std::vector<int64_t>& host_of) {
  if (!fault.stage.empty() && fault.stage != name_of(stage)) return false;
  // The messages of this stage hold times.
  if (fault.kind == PlantedKind::kCorrupt && stage == Stage::kEnvironment) return false;
  const int64_t host = host_of[static_cast<size_t>(rank)];
  if (fault.rank >= 0) return fault.rank == rank;
  if (fault.host >= 0) return fault.host == host;
  return std::find(fault.link.begin(), fault.link.end(), host) != fault.link.end();
}

std::vector<FaultSpec> world_faults(const std::vector<PlantedFault>& faults, Stage stage,
                                    const std::vector<int64_t>& host_of) {
  std::vector<FaultSpec> specs;
  for (const PlantedFault& fault : faults) {
    const bool at_link = fault.kind == PlantedKind::kCut || fault.kind == PlantedKind::kLag;
    if (!at_link && fault.kind != PlantedKind::kKill && fault.kind != PlantedKind::kHang) continue;
    for (int64_t rank = 0; rank < static_cast<int64_t>(host_of.size()); ++rank) {
      if (!acts_on(fault, stage, rank, host_of)) continue;
      FaultSpec spec;
      spec.kind = fault.kind == PlantedKind::kLag    ? FaultKind::kLag
                  : at_link                          ? FaultKind::kCut
                  : fault.kind == PlantedKind::kKill ? FaultKind::kKill
                                                     : FaultKind::kHang;
      spec.rank = rank;
      spec.at_call = fault.at_call;
      spec.heal_s = fault.heal_s;
      spec.seconds = fault.seconds;
      specs.push_back(spec);
      if (at_link) break;  // its host has one link
    }
  }
  return specs;
}

PlantedFaults::PlantedFaults(const std::vector<PlantedFault>& faults, Stage stage, int64_t round,
                             int64_t seed, int64_t rank, std::vector<int64_t> host_of)
    : rank_(rank),
      host_of_(std::move(host_of)),
      random_(stream_seed(seed, "planted") + mix_bits(static_cast<uint64_t>(1000 * round + rank))) {
  for (size_t i = 0; i < faults.size(); ++i) {
    const PlantedFault& fault = faults[i];
    if (!acts_on(fault, stage, rank, host_of_)) continue;
    if (fault.kind == PlantedKind::kCorrupt) corrupt_.push_back({i, fault});
    if (fault.kind == PlantedKind::kSlow) slow_.push_back({i, fault});
    if (fault.kind != PlantedKind::kClock) continue;
    clock_offset_s_ += fault.seconds;
    if (stage == Stage::kEnvironment && fault.seconds != 0) acted_.insert(i);
  }
}

// A fault of a link acts on messages to the other host; of a received one, if it is on the output.
bool PlantedFaults::concerns(const PlantedFault& fault, const world::CallInProgress& call) const {
  if (fault.link.empty()) return true;
  if (!call.call || !is_message(call.call->op) || call.call->root < 0) return false;
  const auto& ranks = *call.call->group_ranks;
  const int64_t other = host_of_[static_cast<size_t>(ranks[static_cast<size_t>(call.call->root)])];
  const int64_t own = host_of_[static_cast<size_t>(rank_)];
  return other == fault.link[own == fault.link[0] ? 1 : 0];
}

bool PlantedFaults::is_drawn(const PlantedFault& fault) {
  return static_cast<double>(random_() >> 11) * 0x1p-53 < fault.probability;
}

std::function<void()> PlantedFaults::before_call(world::CallInProgress& call) {
  for (const auto& [number, fault] : slow_) {
    if (!concerns(fault, call)) continue;
    sleep_for(fault.seconds);
    acted_.insert(number);
  }
  std::vector<PlantedFault> later;
  bool copied = false;
  for (const auto& [number, fault] : corrupt_) {
    if (!concerns(fault, call) || !is_drawn(fault)) continue;
    const world::Tensors& reached = fault.side == PlantedSide::kOutput ? call.outputs : call.inputs;
    const auto holds = [](const at::Tensor& tensor) { return tensor.numel() > 0; };
    if (std::any_of(reached.begin(), reached.end(), holds)) acted_.insert(number);
    if (fault.side == PlantedSide::kOutput) {
      later.push_back(fault);
      continue;
    }
    if (!call.in_place && !copied) {
      for (at::Tensor& input : call.inputs) input = input.clone();
    }
    copied = true;
    corrupt(call.inputs, fault);
  }
  if (later.empty()) return {};
  return [later, outputs = call.outputs] {
    for (const PlantedFault& fault : later) corrupt(outputs, fault);
  };
}

void PlantedFaults::before_computing() {
  for (const auto& [number, fault] : slow_) {
    if (!fault.link.empty()) continue;
    sleep_for(fault.seconds);
    acted_.insert(number);
  }
}

void corrupt(const world::Tensors& tensors, const PlantedFault& fault) {
  for (const at::Tensor& tensor : tensors) {
    const int64_t count = tensor.numel();
    if (count == 0) continue;
    const auto element_bytes = static_cast<int64_t>(tensor.element_size());
    const at::Tensor here = tensor.detach().to(at::kCPU).contiguous().clone();
    at::Tensor bytes = here.view({-1}).view(at::kByte);
    const auto [first, stride, most] = positions_of(fault, count, element_bytes);
    int64_t done = 0;
    for (int64_t at = first; at < count && done < most; at += stride, ++done) {
      flip(bytes, at, element_bytes, fault.bit);
    }
    tensor.detach().copy_(here);
  }
}

}  // namespace shardproof::sim::validate
