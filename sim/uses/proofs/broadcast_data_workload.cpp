// Workload broadcast_data: a batch that only the first rank of each group reads.
//
// Sharded: src/parallel/tp/broadcast_data.h. The batch has token ids, their mask, a tensor without
// elements and one number; ranks that may not read hold other numbers. Outputs: "got.<key>".
#include <ATen/ATen.h>

#include "parallel/tp/broadcast_data.h"
#include "sim/uses/proofs/built_in.h"

namespace shardproof::sim::proofs {
namespace {

Layout samples_of_group(const Options& options) {
  return Layout({Cut::even(0, options["axis"] == "dp" ? "tp" : "dp")});
}

WorkloadTensors batch_inputs(Draw& draw, const Options& options) {
  const int64_t samples = options["samples"], tokens = options["tokens"];
  const Layout own = samples_of_group(options);
  return {{"ids", draw.integers(1000, {samples, tokens}), own},
          {"mask", draw.integers(2, {samples, tokens, 1}), own},
          {"none", draw.integers(2, {samples, 0, 3}), own},
          {"count", draw.integers(1000, {})}};
}

const std::vector<std::string>& batch_keys() {
  static const std::vector<std::string> keys = {"count", "ids", "none", "mask"};
  return keys;
}

at::ScalarType batch_dtype(const Options& options) {
  return options["floating"] ? at::kDouble : at::kLong;
}

WorkloadTensors plain_batch(const TensorsByName& full, const Options& options) {
  WorkloadTensors out;
  for (const std::string& key : batch_keys()) {
    out.push_back({"got." + key, full.at(key).to(batch_dtype(options))});
  }
  return out;
}

WorkloadTensors broadcast_batch(const TensorsByName& local, MeshComm& comm,
                                const Options& options) {
  Communicator& group = comm.along(options["axis"].get<std::string>());
  const at::ScalarType dtype = batch_dtype(options);
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, tensor] : local) {
    own[name] = (group.rank() == 0 ? tensor : tensor + 1).to(dtype);
  }
  if (options["other_dtype"]) own["mask"] = own["mask"].to(at::kBool);
  std::vector<std::string> keys = batch_keys();
  if (const std::string missing = options["missing"]; !missing.empty()) keys.push_back(missing);
  const at::Device device = local.at("ids").device();
  const auto got = broadcast_data(keys, own, dtype, device, group);
  WorkloadTensors out;
  for (const std::string& key : batch_keys()) {
    out.push_back(
        {"got." + key, got.at(key), key == "count" ? Layout() : samples_of_group(options)});
  }
  return out;
}

}  // namespace

Workload broadcast_data_workload() {
  return {.name = "broadcast_data",
          .inputs = batch_inputs,
          .plain = plain_batch,
          .sharded = broadcast_batch};
}

}  // namespace shardproof::sim::proofs
