// Writes a Hugging Face folder from a mesh: config.json and the full weights under their names.
//
//   config.json
//   model.safetensors                      when one file can hold all; else
//   model-00001-of-00003.safetensors ..    in the order of names, and
//   model.safetensors.index.json           {"metadata": {"total_size"}, "weight_map": {name: file}}
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

struct SaveOptions {
  // Tensor bytes of one file, unless a single tensor has more.
  int64_t max_file_bytes = int64_t{5} << 30;
  at::ScalarType dtype = at::kFloat;  // stored dtype of the weights
  at::Device device = at::kCPU;       // device on which the communicator moves tensors
};

//   folder       on world rank 0's machine; made if it does not exist
//   config       the config.json (model/config.h); dtype and architecture are filled in
//   parameters   with their layouts, a tied one once; the same on every rank
//   pieces       one per parameter: this rank's shard, any float dtype
//
// Only rank 0 writes: each file under a temporary name, then renamed; the index last. It holds one
// file's tensors at a time. It removes files of an earlier model that would be read instead.
//
// Forward   per parameter a send to rank 0 from each rank that is the first to hold its piece,
//           labeled "save <name>"; throw_together at the end
// Throws    Error(kBadInput) on every rank: the folder cannot be made or written
void save_weights(const std::string& folder, const nlohmann::json& config,
                  const std::vector<ParameterPtr>& parameters,
                  const std::vector<at::Tensor>& pieces, const SaveOptions& options,
                  MeshComm& comm);

}  // namespace shardproof
