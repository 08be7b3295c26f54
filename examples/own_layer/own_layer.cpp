// A custom sharded layer beside its plain twin: a gelu MLP, cut over tp.
#include <ATen/ATen.h>

#include "collective/mappings.h"
#include "sim/program/program.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::program;
using namespace shardproof::sim::proofs;

// The inputs: full tensors from the seed, and how the ranks hold each.
WorkloadTensors inputs(Draw& draw, const Options& options) {
  const int64_t width = options["width"], hidden = options["hidden"];
  return {{"x", draw.normal({3, 5, width})},
          {"up", draw.normal({hidden, width}) / 3, Layout({Cut::chunk(0, "tp")})},
          {"down", draw.normal({width, hidden}) / 3, Layout({Cut::chunk(1, "tp")})},
          {"bias", draw.normal({width})}};
}

// The computation on one device.
WorkloadTensors plain(const TensorsByName& full, const Options&) {
  const at::Tensor h = at::gelu(full.at("x").matmul(full.at("up").t()));
  return {{"h", h}, {"y", h.matmul(full.at("down").t()) + full.at("bias")}};
}

// The computation of each rank with its parts.
WorkloadTensors sharded(const TensorsByName& local, MeshComm& comm, const Options&) {
  Communicator& tp = comm.along("tp");
  const at::Tensor x = copy_with_all_reduce_backward(local.at("x"), tp, "own_layer x");
  const at::Tensor h = at::gelu(x.matmul(local.at("up").t()));
  const at::Tensor addend = h.matmul(local.at("down").t());
  const at::Tensor y = all_reduce_with_identity_backward(addend, tp, "own_layer y");
  return {{"h", h, Layout({Cut::chunk(2, "tp")})}, {"y", y + local.at("bias")}};
}

int main(int argc, char** argv) {
  return run_program(argc, argv,
                     {{.name = "own_layer",
                       .about = "y = gelu(x up^T) down^T + bias, up and down cut over tp",
                       .options = {{"width", 6}, {"hidden", 10, "Features of h", Range{1, 100}}},
                       .inputs = inputs,
                       .plain = plain,
                       .sharded = sharded}});
}
