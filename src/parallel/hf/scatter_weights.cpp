#include "parallel/hf/scatter_weights.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "tensor/shard.h"

namespace shardproof {
namespace {

constexpr int64_t kRoot = 0;

const at::Tensor& full_weight(const WeightMap& full, const Parameter& parameter) {
  const auto found = full.find(parameter.name);
  SHARDPROOF_ASSERT(found != full.end(), "the weights have no tensor " + parameter.name);
  return found->second;
}

std::vector<at::ScalarType> stored_dtypes(const std::vector<ParameterPtr>& parameters,
                                          const WeightMap* full, Communicator& world,
                                          at::Device device) {
  std::vector<int64_t> codes(parameters.size(), 0);
  for (size_t i = 0; full != nullptr && i < codes.size(); ++i) {
    codes[i] = static_cast<int64_t>(full_weight(*full, *parameters[i]).scalar_type());
  }
  const at::Tensor codes_of_root =
      world.broadcast(at::tensor(codes, at::kLong).to(device), kRoot, "load dtypes").cpu();
  std::vector<at::ScalarType> dtypes;
  for (size_t i = 0; i < codes.size(); ++i) {
    dtypes.push_back(
        static_cast<at::ScalarType>(codes_of_root[static_cast<int64_t>(i)].item<int64_t>()));
  }
  return dtypes;
}

int64_t element_count(const std::vector<int64_t>& shape) { return c10::multiply_integers(shape); }

// Rank 0's part: sends a piece to every other rank and returns its own.
at::Tensor deal(const Parameter& parameter, const at::Tensor& full, MeshComm& comm,
                at::Device device) {
  const Mesh& mesh = comm.mesh();
  for (int64_t rank = 1; rank < mesh.world_size(); ++rank) {
    const auto shape = parameter.layout.local_shape(parameter.global_shape, mesh, rank);
    if (element_count(shape) == 0) continue;
    comm.world().send(cut(full, parameter.layout, mesh, rank).to(device), rank,
                      "load " + parameter.name);
  }
  return cut(full, parameter.layout, mesh, kRoot);
}

at::Tensor receive(const Parameter& parameter, at::ScalarType dtype, MeshComm& comm,
                   at::Device device) {
  const auto shape = parameter.layout.local_shape(parameter.global_shape, comm.mesh(), comm.rank());
  if (element_count(shape) == 0) return at::empty(shape, dtype);
  const at::Tensor like = at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
  return comm.world().recv(like, kRoot, "load " + parameter.name).cpu();
}

}  // namespace

std::vector<at::Tensor> scatter_weights(const std::vector<ParameterPtr>& parameters,
                                        const WeightMap* full, MeshComm& comm, at::Device device) {
  SHARDPROOF_ASSERT((full != nullptr) == (comm.rank() == kRoot), "rank 0 alone has the weights");
  const at::NoGradGuard no_grad;
  const std::vector<at::ScalarType> dtypes = stored_dtypes(parameters, full, comm.world(), device);
  std::vector<at::Tensor> pieces;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    pieces.push_back(full != nullptr ? deal(parameter, full_weight(*full, parameter), comm, device)
                                     : receive(parameter, dtypes[i], comm, device));
  }
  return pieces;
}

}  // namespace shardproof
