#include "policy/refit.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "policy/shared_pages.h"
#include "tensor/shard.h"

namespace shardproof {
namespace {

using nlohmann::json;

constexpr int64_t kRoot = 0;        // in the refit group
constexpr int64_t kAlignment = 16;  // of tensors in a bucket: the bytes of the widest dtype
constexpr const char* kTakes = "refit can be taken";

// The trainer's rank 0 sends this to the receivers first.
struct Announcement {
  RefitInfo info;
  int64_t budget_bytes = 0;
  std::optional<SharedAddress> pages = std::nullopt;
};

json to_json(const Announcement& announced) {
  json tensors = json::array();
  for (const RefitTensor& tensor : announced.info) {
    tensors.push_back({tensor.key, tensor.shape, static_cast<int>(tensor.dtype)});
  }
  json out = {{"tensors", tensors}, {"budget_bytes", announced.budget_bytes}};
  if (announced.pages) {
    out["pages"] = {announced.pages->process, announced.pages->descriptor, announced.pages->bytes,
                    announced.pages->inode, announced.pages->host};
  }
  return out;
}

Announcement from_json(const json& announced) {
  Announcement out{.info = {}, .budget_bytes = announced.at("budget_bytes")};
  for (const json& tensor : announced.at("tensors")) {
    out.info.push_back({tensor.at(0), tensor.at(1).get<std::vector<int64_t>>(),
                        static_cast<at::ScalarType>(tensor.at(2).get<int>())});
  }
  if (announced.contains("pages")) {
    const json& pages = announced["pages"];
    out.pages = SharedAddress{.process = pages.at(0),
                              .descriptor = pages.at(1),
                              .bytes = pages.at(2),
                              .inode = pages.at(3),
                              .host = pages.at(4)};
  }
  return out;
}

std::string broadcast_text(const std::string& text, Communicator& group, at::Device device) {
  const at::Tensor size = group.broadcast(at::scalar_tensor(std::ssize(text), at::kLong).to(device),
                                          kRoot, "refit info size");
  const auto length = size.item<int64_t>();
  const bool is_root = group.rank() == kRoot;
  if (length <= 0 || (is_root && length != std::ssize(text))) {
    throw_failed(fmt::format("the announcement of a refit has {} bytes", length),
                 "check what rank 0 of the trainer sends first");
  }
  at::Tensor bytes = at::empty({length}, at::kByte);
  if (is_root) std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  bytes = group.broadcast(bytes.to(device), kRoot, "refit info").cpu();
  const auto* letters = bytes.const_data_ptr<uint8_t>();
  return {letters, letters + bytes.numel()};
}

// Whether any member of the group has a problem.
bool anybody(bool problem, Communicator& group, at::Device device) {
  const at::Tensor flag = at::scalar_tensor(problem ? 1 : 0, at::kLong).to(device);
  return group.all_reduce(flag, ReduceOp::kMax, kTakes).item<int64_t>() != 0;
}

Error elsewhere() {
  return Error({.kind = ErrorKind::kFailed,
                .what = "a receiver cannot take the weights",
                .fix = "see what that rank says",
                .code = "aborted"});
}

// The tensors of a bucket in its memory, [bytes] uint8.
std::vector<at::Tensor> tensors_in(const at::Tensor& memory, const RefitInfo& info,
                                   const RefitBucket& bucket) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < bucket.offsets.size(); ++i) {
    const RefitTensor& tensor = info[bucket.first + i];
    tensors.push_back(
        memory.narrow(0, bucket.offsets[i], tensor.bytes()).view(tensor.dtype).view(tensor.shape));
  }
  return tensors;
}

int64_t largest(const std::vector<RefitBucket>& buckets) {
  int64_t bytes = 0;
  for (const RefitBucket& bucket : buckets) bytes = std::max(bytes, bucket.bytes);
  return bytes;
}

std::string bucket_label(const RefitInfo& info, const RefitBucket& bucket) {
  const std::string& first = info[bucket.first].key;
  if (bucket.offsets.size() == 1) return fmt::format("refit {}", first);
  return fmt::format("refit {} .. {}", first, info[bucket.first + bucket.offsets.size() - 1].key);
}

// The destination of each sent tensor, in the order of sending.
std::vector<const HeldTensor*> match(const RefitInfo& info, const std::vector<HeldTensor>& wanted) {
  std::map<std::string, const HeldTensor*> by_key;
  std::vector<std::string> keys;
  for (const HeldTensor& tensor : wanted) {
    by_key[tensor.key] = &tensor;
    keys.push_back(tensor.key);
  }
  std::vector<const HeldTensor*> places;
  for (const RefitTensor& sent : info) {
    const auto found = by_key.find(sent.key);
    if (found == by_key.end() || found->second == nullptr) {
      const std::string nearest = nearest_name(sent.key, keys);
      throw_bad_input(fmt::format("'{}' is sent, and this receiver has no such tensor", sent.key),
                      nearest.empty() ? "load the trainer's model" : "it has " + nearest);
    }
    const HeldTensor& here = *found->second;
    if (here.global_shape != sent.shape || here.piece.scalar_type() != sent.dtype) {
      throw_bad_input(
          fmt::format("'{}' is sent as {} [{}], this receiver has {} [{}]", sent.key,
                      c10::toString(sent.dtype), fmt::join(sent.shape, ", "),
                      c10::toString(here.piece.scalar_type()), fmt::join(here.global_shape, ", ")),
          "load the trainer's model in the dtype that the refit names");
    }
    places.push_back(&here);
    found->second = nullptr;
  }
  for (const auto& [key, tensor] : by_key) {
    if (tensor == nullptr) continue;
    throw_bad_input(fmt::format("'{}' is wanted and not sent", key),
                    "send the weights of the receiver's model");
  }
  return places;
}

void take(const std::vector<at::Tensor>& full, const std::vector<const HeldTensor*>& places,
          size_t first, const Mesh& mesh, int64_t rank) {
  for (size_t i = 0; i < full.size(); ++i) {
    const HeldTensor& place = *places[first + i];
    place.piece.detach().copy_(cut(full[i], place.layout, mesh, rank));
  }
}

// Trainer rank 0's memory for one bucket at a time.
class Outlet {
 public:
  Outlet(RefitPath path, int64_t largest_bytes, at::Device device) : device_(device) {
    if (path == RefitPath::kSharedMemory) pages_.emplace(SharedPages::create(largest_bytes));
  }
  std::optional<SharedAddress> address() const {
    return pages_ ? std::optional(pages_->address()) : std::nullopt;
  }
  at::Tensor room(int64_t bytes) const {
    if (pages_) return pages_->bytes().narrow(0, 0, bytes);
    return at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  }
  // Returns when no receiver reads `room` any more.
  void hand_over(const at::Tensor& room, const std::string& label, Communicator& group) const {
    if (!pages_) return group.broadcast_into(room, kRoot, label);
    group.barrier(label + " is written");
    group.barrier(label + " is read");
  }

 private:
  at::Device device_;
  std::optional<SharedPages> pages_;
};

}  // namespace

int64_t RefitTensor::bytes() const {
  return c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
}

RefitInfo prepare_refit_info(const std::vector<HeldTensor>& tensors, at::ScalarType dtype) {
  RefitInfo info;
  for (const HeldTensor& tensor : tensors) {
    const at::ScalarType own = tensor.piece.scalar_type();
    info.push_back({tensor.key, tensor.global_shape, at::isFloatingType(own) ? dtype : own});
  }
  return info;
}

std::vector<RefitBucket> refit_buckets(const RefitInfo& info, int64_t budget_bytes) {
  if (budget_bytes <= 0) {
    throw_bad_input(fmt::format("a byte budget of {} holds no tensor", budget_bytes),
                    "give the bytes of full tensors that may be held at once");
  }
  std::vector<RefitBucket> buckets;
  for (size_t i = 0; i < info.size(); ++i) {
    const int64_t bytes = round_up(info[i].bytes(), kAlignment);
    if (buckets.empty() || buckets.back().bytes + bytes > budget_bytes) {
      buckets.push_back({.first = i});
    }
    RefitBucket& bucket = buckets.back();
    bucket.offsets.push_back(bucket.bytes);
    bucket.bytes += bytes;
  }
  return buckets;
}

std::vector<HeldTensor> weights_of(const Trainer& trainer) {
  std::vector<HeldTensor> weights;
  for (size_t i = 0; i < trainer.parameters().size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    weights.push_back(
        {parameter.name, trainer.masters()[i], parameter.global_shape, parameter.layout});
  }
  return weights;
}

void send_refit(const std::vector<HeldTensor>& tensors, const RefitOptions& options,
                MeshComm& trainer, Communicator* receivers, at::Device device) {
  SHARDPROOF_ASSERT((receivers != nullptr) == (trainer.rank() == kRoot),
                    "the trainer's rank 0 alone is in the refit group");
  const at::NoGradGuard no_grad;
  const RefitInfo info = prepare_refit_info(tensors, options.dtype);
  const std::vector<RefitBucket> buckets = refit_buckets(info, options.budget_bytes);
  std::optional<Outlet> outlet;
  bool refused = false;
  if (receivers != nullptr) {
    outlet.emplace(options.path, largest(buckets), device);
    const Announcement announced{info, options.budget_bytes, outlet->address()};
    broadcast_text(to_json(announced).dump(), *receivers, device);
    refused = anybody(false, *receivers, device);
  }
  if (anybody(refused, trainer.world(), device)) throw elsewhere();
  for (size_t b = 0; b < buckets.size(); ++b) {
    const RefitBucket& bucket = buckets[b];
    at::Tensor room;
    std::vector<at::Tensor> full(bucket.offsets.size());
    if (outlet) {
      room = outlet->room(bucket.bytes);
      full = tensors_in(room, info, bucket);
    }
    for (size_t i = 0; i < full.size(); ++i) {
      const HeldTensor& held = tensors[bucket.first + i];
      collect_into(full[i], held, info[bucket.first + i].dtype, device, trainer,
                   "refit " + held.key);
    }
    if (!outlet) continue;
    if (options.before_bucket) options.before_bucket(static_cast<int64_t>(b), room);
    outlet->hand_over(room, bucket_label(info, bucket), *receivers);
  }
}

void receive_refit(const std::vector<HeldTensor>& wanted, const Mesh& mesh, int64_t rank,
                   Communicator& from, at::Device device) {
  const at::NoGradGuard no_grad;
  const Announcement announced = from_json(json::parse(broadcast_text("", from, device)));
  std::vector<const HeldTensor*> places;
  std::optional<SharedPages> pages;
  std::exception_ptr problem;
  try {
    places = match(announced.info, wanted);
    if (announced.pages) pages.emplace(SharedPages::open(*announced.pages));
  } catch (const Error&) {
    problem = std::current_exception();
  }
  const bool refused = anybody(problem != nullptr, from, device);
  if (problem) std::rethrow_exception(problem);
  if (refused) throw elsewhere();
  const std::vector<RefitBucket> buckets = refit_buckets(announced.info, announced.budget_bytes);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const RefitBucket& bucket = buckets[b];
    const std::string label = bucket_label(announced.info, bucket);
    if (pages) {
      from.barrier(label + " is written");
      take(tensors_in(pages->bytes().narrow(0, 0, bucket.bytes), announced.info, bucket), places,
           bucket.first, mesh, rank);
      from.barrier(label + " is read");
      continue;
    }
    const at::Tensor room =
        at::empty({bucket.bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    from.broadcast_into(room, kRoot, label);
    take(tensors_in(room, announced.info, bucket), places, bucket.first, mesh, rank);
  }
}

}  // namespace shardproof
