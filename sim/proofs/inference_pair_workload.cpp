#include "sim/proofs/inference_pair_workload.h"

#include <ATen/ATen.h>

#include "parallel/tp/inference_pair.h"

namespace shardproof::sim {
namespace {

constexpr double kNormEps = 1e-5;

// Dim 0 is tokens, dim 1 samples.
Layout pair_layout(int64_t dim) { return Layout({Cut::even(1, "dp"), Cut::even(dim, "tp")}); }

WorkloadTensors pair_inputs(Draw& draw, const Options& options) {
  const int64_t tokens = options["tokens"], batch = options["batch"];
  const int64_t features = options["features"], width = options["width"];
  const int64_t out_features = options["out_features"];
  return {{"x", draw.normal({tokens, batch, features}), pair_layout(2)},
          {"residual_in", draw.normal({tokens, batch, width}), pair_layout(0)},
          {"row", draw.normal({width, features}), Layout({Cut::even(1, "tp")}), {"dp"}},
          {"norm", draw.normal({width}), {}, {"dp", "tp"}},
          {"column", draw.normal({out_features, width}), Layout({Cut::even(0, "tp")}), {"dp"}}};
}

WorkloadTensors plain_pair(const TensorsByName& full, const Options&) {
  const at::NoGradGuard no_grad;
  const at::Tensor sum = full.at("x").matmul(full.at("row").t()) + full.at("residual_in");
  const at::ScalarType wide = sum.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor values = sum.to(wide);
  const at::Tensor size = (values.pow(2).mean(-1, true) + kNormEps).sqrt();
  const at::Tensor normed = (values / size * full.at("norm").to(wide)).to(sum.scalar_type());
  return {{"residual", sum}, {"y", normed.matmul(full.at("column").t())}};
}

WorkloadTensors sharded_pair(const TensorsByName& local, MeshComm& comm, const Options& options) {
  Communicator& tp = comm.along("tp");
  const InferenceRowScatter row(local.at("row"), tp, "down");
  const InferenceNormColumn column(local.at("norm"), local.at("column"), kNormEps, tp, "up");
  if (options["joined"]) {
    const JoinedRows rows = row.forward_joined(local.at("x"), local.at("residual_in"), column);
    return {{"residual", rows.residual, pair_layout(0)},
            {"y", column.forward_normed(rows.gathered), pair_layout(2)}};
  }
  const at::NoGradGuard no_grad;
  const at::Tensor sum = row.forward(local.at("x")) + local.at("residual_in");
  return {{"residual", sum, pair_layout(0)}, {"y", column.forward(sum), pair_layout(2)}};
}

}  // namespace

Workload inference_pair_workload() {
  return {.name = "inference_pair",
          .about = "row parallel, addition, norm and column parallel, sequence cut in between",
          .options = {{"tokens", 12},
                      {"batch", 2},
                      {"features", 12},
                      {"width", 7},
                      {"out_features", 24},
                      {"joined", true}},
          .inputs = pair_inputs,
          .plain = plain_pair,
          .sharded = sharded_pair};
}

}  // namespace shardproof::sim
