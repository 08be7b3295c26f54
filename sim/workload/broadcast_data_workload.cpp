#include "sim/workload/broadcast_data_workload.h"

#include <ATen/ATen.h>

#include "parallel/tp/broadcast_data.h"

namespace shardproof::sim {
namespace {

Layout samples_of_group() { return Layout({Cut::even(0, "dp")}); }

WorkloadTensors batch_inputs(Draw& draw, const Options& options) {
  const int64_t samples = options["samples"], tokens = options["tokens"];
  return {{"ids", draw.integers(1000, {samples, tokens}), samples_of_group()},
          {"mask", draw.integers(2, {samples, tokens, 1}), samples_of_group()},
          {"none", draw.integers(2, {samples, 0, 3}), samples_of_group()},
          {"count", draw.integers(1000, {})}};
}

const std::vector<std::string>& batch_keys() {
  static const std::vector<std::string> keys = {"count", "ids", "none", "mask"};
  return keys;
}

WorkloadTensors plain_batch(const TensorsByName& full, const Options&) {
  WorkloadTensors out;
  for (const std::string& key : batch_keys()) out.push_back({"got." + key, full.at(key)});
  return out;
}

WorkloadTensors broadcast_batch(const TensorsByName& local, MeshComm& comm, const Options&) {
  Communicator& tp = comm.along("tp");
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, tensor] : local) own[name] = tp.rank() == 0 ? tensor : tensor + 1;
  const at::Device device = local.at("ids").device();
  const auto got = broadcast_data(batch_keys(), own, at::kLong, device, tp);
  WorkloadTensors out;
  for (const std::string& key : batch_keys()) {
    out.push_back({"got." + key, got.at(key), key == "count" ? Layout() : samples_of_group()});
  }
  return out;
}

}  // namespace

Workload broadcast_data_workload() {
  return {.name = "broadcast_data",
          .about = "a batch from the first tp rank of each group to all of it",
          .options = {{"samples", 4}, {"tokens", 5}},
          .inputs = batch_inputs,
          .plain = plain_batch,
          .sharded = broadcast_batch};
}

}  // namespace shardproof::sim
