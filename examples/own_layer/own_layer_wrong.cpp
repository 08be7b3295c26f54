// The same layer with two mistakes, each a workload, which the judge finds and explains. Another
// workload has a weight that data parallel ranks share, with the mistake that its option names.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>

#include "collective/mappings.h"
#include "sim/program/program.h"

using namespace shardproof;
using namespace shardproof::sim::program;
using namespace shardproof::sim::proofs;

namespace {

WorkloadTensors inputs(Draw& draw, const Options& options) {
  const int64_t width = options["width"], hidden = options["hidden"];
  return {{"x", draw.normal({3, 5, width})},
          {"up", draw.normal({hidden, width}) / 3, Layout({Cut::chunk(0, "tp")})},
          {"down", draw.normal({width, hidden}) / 3, Layout({Cut::chunk(1, "tp")})},
          {"bias", draw.normal({width})}};
}

WorkloadTensors plain(const TensorsByName& full, const Options&) {
  const at::Tensor h = at::gelu(full.at("x").matmul(full.at("up").t()));
  return {{"h", h}, {"y", h.matmul(full.at("down").t()) + full.at("bias")}};
}

// The bias is added before the sum over tp, so it counts tp times.
WorkloadTensors bias_in_every_addend(const TensorsByName& local, MeshComm& comm, const Options&) {
  Communicator& tp = comm.along("tp");
  const at::Tensor x = copy_with_all_reduce_backward(local.at("x"), tp, "own_layer x");
  const at::Tensor h = at::gelu(x.matmul(local.at("up").t()));
  const at::Tensor addend = h.matmul(local.at("down").t()) + local.at("bias");
  const at::Tensor y = all_reduce_with_identity_backward(addend, tp, "own_layer y");
  return {{"h", h, Layout({Cut::chunk(2, "tp")})}, {"y", y}};
}

// x enters without its backward sum: the forward is right, but the gradient of x is one addend.
WorkloadTensors no_sum_in_backward(const TensorsByName& local, MeshComm& comm, const Options&) {
  Communicator& tp = comm.along("tp");
  const at::Tensor h = at::gelu(local.at("x").matmul(local.at("up").t()));
  const at::Tensor addend = h.matmul(local.at("down").t());
  const at::Tensor y = all_reduce_with_identity_backward(addend, tp, "own_layer y");
  return {{"h", h, Layout({Cut::chunk(2, "tp")})}, {"y", y + local.at("bias")}};
}

// A batch is split over the dp ranks, which share a weight: its gradient is a sum over dp.
WorkloadTensors shared_inputs(Draw& draw, const Options& options) {
  const int64_t rows = options["rows"], width = options["width"];
  return {{"x", draw.normal({4, width}), Layout({Cut::chunk(0, "dp")})},
          {"w", draw.normal({rows, width}), {}, {"dp"}}};
}

WorkloadTensors shared_plain(const TensorsByName& full, const Options&) {
  return {{"y", full.at("x").matmul(full.at("w").t())}};
}

// The rank with dp 1 makes the mistake; no mistake changes y.
WorkloadTensors shared_weight(const TensorsByName& local, MeshComm& comm, const Options& options) {
  const bool here = comm.along("dp").rank() == 1;
  const std::string mistake = here ? options["mistake"] : "none";
  if (mistake == "dies") {
    std::printf("reading the weights\nof a <shard>\nthat is not there\n");
    std::fflush(stdout);
    std::abort();
  }
  const at::Tensor w = mistake == "lost" ? local.at("w").detach() : local.at("w");
  at::Tensor y = local.at("x").matmul(w.t());
  if (mistake == "element") y = y + (w[12][34] - w[12][34].detach());
  return {{"y", y, Layout({Cut::chunk(0, "dp")})}};
}

Workload wrong(const std::string& name, decltype(Workload::sharded) sharded) {
  return {.name = name,
          .about = "own_layer with a mistake",
          .options = {{"width", 6}, {"hidden", 10}},
          .inputs = inputs,
          .plain = plain,
          .sharded = std::move(sharded)};
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv,
                     {wrong("bias_in_every_addend", bias_in_every_addend),
                      wrong("no_sum_in_backward", no_sum_in_backward),
                      {.name = "shared_weight",
                       .about = "y = x w^T, x cut over dp; mistake: none, element, lost or dies",
                       .options = {{"rows", 4}, {"width", 6}, {"mistake", "none"}},
                       .inputs = shared_inputs,
                       .plain = shared_plain,
                       .sharded = shared_weight}});
}
