// Workload refit: a sharded trainer passes its weights to inference ranks outside of it.
//
// The case's mesh is that of the inference side, dp replicas of tp ranks. The last `replicas` of
// them are receivers; the first ranks are the trainer, on a separate mesh; the others are idle.
//
//   dp 3 x tp 3, trainer dp 2 x tp 2, one replica      0 1 2 3 trainer, 4 5 idle, 6 7 8 receive
//
// Outputs: "param.<key>" of every weight and buffer at every receiver, by its own layout; in a
// lower dtype its bits, which must equal those of the full weight after the cast. Rank 0 of the
// trainer throws when its full tensors exceed the budget or outlive the refit.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "model/decoder.h"
#include "model/precision.h"
#include "parallel/registry/styles.h"
#include "parallel/tp/describe.h"
#include "policy/refit.h"
#include "sim/uses/proofs/built_in.h"
#include "tensor/shard.h"
#include "train/trainer.h"

namespace shardproof::sim::proofs {
namespace {

constexpr int64_t kCopies = 2;  // of a hybrid model

ModelConfig refit_model(const Options& options) {
  ModelConfig config;
  config.family = options["family"];
  config.vocab_size = 29;
  config.hidden_size = 10;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 12;
  config.num_key_value_heads = options["kv_heads"];
  config.head_dim = 4;
  config.attention_bias = options["biases"];
  config.mlp_bias = options["biases"];
  config.tie_word_embeddings = options["tied"];
  return config;
}

// Buffers of a model: numbers that no float holds, flags, and a scale.
WeightMap refit_buffers() {
  const auto large = (int64_t{1} << 60) + 1;
  return {{"buffers.flags", at::arange(7, at::kLong).remainder(3).eq(0)},
          {"buffers.position_ids", at::arange(12, at::kInt).view({12, 1}) * 3},
          {"buffers.scale", at::full({}, 1.0 / 3, at::kDouble)},
          {"buffers.tokens_seen", at::arange(5, at::kLong) + large}};
}

Layout buffer_layout(const std::string& key) {
  return key == "buffers.position_ids" ? Layout({Cut::even(0, "tp")}) : Layout();
}

// The weights of the whole model by parameter name, drawn from the case's seed.
WeightMap refit_weights(const TensorsByName& inputs, const Options& options) {
  return *seeded_weights(refit_model(options), inputs.at("seed").item<int64_t>());
}

// The judge compares a float64 tensor by its numbers, so every other tensor is given by its bits.
at::Tensor judged(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return tensor.view(at::kInt).to(at::kLong);
    case at::kBFloat16:
    case at::kHalf:
      return tensor.view(at::kShort).to(at::kLong);
    case at::kDouble:
      return tensor;
    default:
      return tensor.to(at::kLong);
  }
}

WorkloadTensors refit_inputs(Draw& draw, const Options& options) {
  const int64_t dp = options["trainer_dp"];
  if (options["data_parallel"] == "hybrid" && dp % kCopies != 0) {
    throw_bad_input(fmt::format("trainer_dp is {}", dp),
                    fmt::format("give a multiple of {}, the copies of a hybrid model", kCopies));
  }
  return {{"seed", draw.integers(int64_t{1} << 30, {})}};
}

WorkloadTensors plain_refit(const TensorsByName& full, const Options& options) {
  const at::ScalarType master = wider_type(dtype_of_precision(options["precision"]));
  const at::ScalarType dtype = dtype_of_precision(options["dtype"]);
  WorkloadTensors out;
  for (const auto& [key, tensor] : refit_weights(full, options)) {
    out.push_back({"param." + key, judged(tensor.to(master).to(dtype))});
  }
  for (const auto& [key, tensor] : refit_buffers()) {
    out.push_back({"param." + key, judged(tensor.is_floating_point() ? tensor.to(dtype) : tensor)});
  }
  return out;
}

// The ranks of the trainer and of the receivers.
struct Roles {
  Roles(const Mesh& mesh, const Options& options)
      : trainer(Mesh::training({.dp = options["trainer_dp"],
                                .cp = options["trainer_cp"],
                                .tp = options["trainer_tp"]})),
        inference(Mesh::training({.dp = options["replicas"], .tp = mesh.size("tp")})),
        first_receiver(mesh.world_size() - inference.world_size()) {
    if (mesh.size("cp") * mesh.size("ulysses") > 1) {
      throw_bad_input("inference ranks are cut over tp alone", "leave cp and ulysses at 1");
    }
    if (trainer.world_size() <= first_receiver) return;
    throw_bad_input(fmt::format("a trainer of {} ranks and {} receivers in a world of {}",
                                trainer.world_size(), inference.world_size(), mesh.world_size()),
                    "raise data_parallel_size until both fit beside each other");
  }
  bool trains(int64_t rank) const { return rank < trainer.world_size(); }
  bool receives(int64_t rank) const { return rank >= first_receiver; }
  std::vector<int64_t> refit_group() const {
    std::vector<int64_t> ranks = {0};
    for (int64_t i = 0; i < inference.world_size(); ++i) ranks.push_back(first_receiver + i);
    return ranks;
  }
  Mesh trainer, inference;
  int64_t first_receiver;
};

// Enforces rank 0's budget: it checks which buckets are still in memory. It waits, because a
// world's threads may release a bucket shortly after the call returns.
class HeldFullTensors {
 public:
  explicit HeldFullTensors(int64_t allowed_bytes) : allowed_(allowed_bytes) {}
  void add(const at::Tensor& memory) {
    buckets_.emplace_back(memory.storage().getWeakStorageImpl(),
                          static_cast<int64_t>(memory.nbytes()));
    wait_for(allowed_, "while a bucket is handed over");
    most_ = std::max(most_, held());
  }
  void check_end() const { wait_for(0, "after the last bucket"); }
  int64_t most() const { return most_; }

 private:
  int64_t held() const {
    int64_t bytes = 0;
    for (const auto& [memory, size] : buckets_) bytes += memory.expired() ? 0 : size;
    return bytes;
  }
  void wait_for(int64_t allowed, const char* when) const {
    for (int i = 0; i < 2000 && held() > allowed; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (held() <= allowed) return;
    throw_failed(fmt::format("rank 0 holds {} bytes of full tensors {}, more than {}", held(), when,
                             allowed),
                 "release each bucket before the next");
  }
  int64_t allowed_, most_ = 0;
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, int64_t>> buckets_;
};

void send_weights(const TensorsByName& local, MeshComm& comm, const Options& options,
                  const Roles& roles, WorkloadNotes& notes) {
  MeshComm ranks = comm.on_mesh("trainer", roles.trainer);
  const at::Device device = local.at("seed").device();
  NoProbe nobody;
  Decoder model(refit_model(options), std::make_shared<WeightMap>(refit_weights(local, options)));
  FsdpOptions data{.kind = enum_of<DataParallelKind>(options["data_parallel"])};
  if (data.kind == DataParallelKind::kHybrid) data.replicate_size = kCopies;
  const ParallelStyles styles = make_styles({.data = data});
  styles.apply(model, ranks);
  const Trainer trainer({.mesh = roles.trainer,
                         .rank = ranks.rank(),
                         .comm = ranks,
                         .probe = nobody,
                         .dtype = dtype_of_precision(options["precision"]),
                         .device = device},
                        model, styles, {});
  std::vector<HeldTensor> tensors = weights_of(trainer);
  for (const auto& [key, tensor] : refit_buffers()) {
    const Layout layout = buffer_layout(key);
    tensors.push_back({key, cut(tensor, layout, roles.trainer, ranks.rank()).to(device),
                       tensor.sizes().vec(), layout});
  }
  RefitOptions refit{
      .dtype = dtype_of_precision(options["dtype"]),
      .budget_bytes = options["budget_bytes"],
      .path = options["path"] == "broadcast" ? RefitPath::kBroadcast : RefitPath::kSharedMemory};
  if (ranks.rank() != 0) return send_refit(tensors, refit, ranks, nullptr, device);
  const RefitInfo info = prepare_refit_info(tensors, refit.dtype);
  const auto buckets = refit_buckets(info, refit.budget_bytes);
  int64_t allowed = refit.budget_bytes;
  for (const RefitBucket& bucket : buckets) {
    if (bucket.offsets.size() == 1) allowed = std::max(allowed, bucket.bytes);
  }
  HeldFullTensors held(allowed);
  refit.before_bucket = [&](int64_t, const at::Tensor& memory) { held.add(memory); };
  send_refit(tensors, refit, ranks, &comm.of_ranks("refit", roles.refit_group()), device);
  held.check_end();
  notes.figures = {{"buckets", buckets.size()}, {"most_bytes_of_full_tensors", held.most()}};
}

at::Tensor never_written(const std::vector<int64_t>& shape, at::ScalarType dtype,
                         at::Device device) {
  return at::full(shape, 77, at::TensorOptions().dtype(dtype).device(device));
}

WorkloadTensors receive_weights(const TensorsByName& local, MeshComm& comm, const Options& options,
                                const Roles& roles) {
  MeshComm ranks = comm.on_mesh("inference", roles.inference, roles.first_receiver);
  const at::Device device = local.at("seed").device();
  const at::ScalarType dtype = dtype_of_precision(options["dtype"]);
  const ModelConfig config = refit_model(options);
  Decoder model(config, weights_to_come(config));
  make_styles({}).apply(model, ranks);
  std::vector<HeldTensor> wanted;
  const auto want = [&](const std::string& key, const std::vector<int64_t>& shape,
                        const Layout& layout, at::ScalarType own) {
    const auto piece = layout.local_shape(shape, roles.inference, ranks.rank());
    wanted.push_back({key, never_written(piece, own, device), shape, layout});
  };
  for (const ParameterPtr& parameter : model.parameters()) {
    want(parameter->name, parameter->global_shape, parameter->layout, dtype);
  }
  for (const auto& [key, tensor] : refit_buffers()) {
    want(key, tensor.sizes().vec(), buffer_layout(key),
         tensor.is_floating_point() ? dtype : tensor.scalar_type());
  }
  receive_refit(wanted, roles.inference, ranks.rank(), comm.of_ranks("refit", roles.refit_group()),
                device);
  WorkloadTensors out;
  for (const HeldTensor& tensor : wanted) {
    out.push_back({"param." + tensor.key, judged(tensor.piece), tensor.layout});
  }
  return out;
}

WorkloadTensors sharded_refit(const TensorsByName& local, MeshComm& comm, const Options& options,
                              WorkloadNotes& notes) {
  const Roles roles(comm.mesh(), options);
  // Every rank refuses what one of them could not cut.
  for (const Mesh& mesh : {roles.trainer, roles.inference}) {
    plan_lines(refit_model(options), mesh, {});
  }
  if (roles.trains(comm.rank())) send_weights(local, comm, options, roles, notes);
  if (roles.receives(comm.rank())) return receive_weights(local, comm, options, roles);
  return {};
}

}  // namespace

Workload refit_workload() {
  return {.name = "refit",
          .inputs = refit_inputs,
          .plain = plain_refit,
          .sharded_with_notes = sharded_refit};
}

}  // namespace shardproof::sim::proofs
