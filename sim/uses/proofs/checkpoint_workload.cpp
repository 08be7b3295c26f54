// Workload checkpointed_block: a tensor-parallel block with dropout, recomputed in the backward.
//
//   h = gelu(x W1^T) [rows of W1 cut over tp], dropped in the region
//   y = x + drop(sum over tp of h W2^T)        dropped equally on all tp ranks
//   z = tanh(y) * gain, then z V^T             a small body before a layer that saves its input
//
// Outputs: y, the result, the draws of the forward and, after the backward, those of the
// recomputation ("draw.<place> again"). Figure "kept_bytes": the bytes that the forward leaves for
// the backward on this rank, result included, "before" without and "after" with the options.
// Sharded: src/random/checkpoint.h, checkpoint_without_output.h, parallel/tp/spread_activation.h.
#include <ATen/ATen.h>

#include <optional>

#include "collective/mappings.h"
#include "parallel/tp/spread_activation.h"
#include "random/checkpoint_without_output.h"
#include "random/region_dropout.h"
#include "random/rng_seeds.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/dealt_streams.h"

namespace shardproof::sim::proofs {
namespace {

constexpr int64_t kBlockSeed = 70;
constexpr const char* kRegion = "hidden dropout";
constexpr const char* kResidual = "residual dropout";

WorkloadTensors block_inputs(Draw& draw, const Options& options) {
  const int64_t width = options["width"], hidden = options["hidden"];
  return {{"x", draw.normal({options["samples"], options["tokens"], width}), over_dp()},
          {"w1", draw.normal({hidden, width}), Layout({Cut::even(0, "tp")}), {"dp"}},
          {"w2", draw.normal({width, hidden}), Layout({Cut::even(1, "tp")}), {"dp"}},
          {"gain", draw.normal({width}), {}, {"dp"}},
          {"v", draw.normal({3, width}), {}, {"dp"}}};
}

at::Tensor norm_of(const at::Tensor& y, const at::Tensor& gain, bool shared) {
  return shared ? y.view_as(y) : at::tanh(y) * gain;
}

bool recomputes_block(const Options& options) { return options["block"] != "plain"; }

WorkloadTensors plain_block(const TensorsByName& full, const Options& options) {
  DealtStreams streams(kBlockSeed, options["tp_ranks"], options["dp_ranks"]);
  const double p = options["p"];
  const at::Tensor x = full.at("x");
  const at::Tensor inner = at::gelu(x.matmul(full.at("w1").t()));
  const at::Tensor hidden = drop_by(inner, streams.keep_parts(inner.sizes(), 2, p), p);
  const at::Tensor region_draws = streams.last_draws();
  const at::Tensor sum = hidden.matmul(full.at("w2").t());
  const at::Tensor y = x + drop_by(sum, streams.keep_alike(sum.sizes(), p), p);
  const at::Tensor residual_draws = streams.last_draws();
  const at::Tensor out = norm_of(y, full.at("gain"), options["shared"]).matmul(full.at("v").t());
  WorkloadTensors outputs = {{std::string("draw.") + kRegion, region_draws},
                             {std::string("draw.") + kResidual, residual_draws},
                             {"y", y.detach()},
                             {"out", out}};
  if (recomputes_block(options)) {
    outputs.push_back({std::string("draw.") + kRegion + " again", region_draws});
    outputs.push_back({std::string("draw.") + kResidual + " again", residual_draws});
  }
  return outputs;
}

// State that the backward needs after the sharded function has returned.
struct Block {
  Block(Communicator& tp, const Options& options)
      : rng(&log), spread(tp, "block"), tp(tp), p(options["p"]), forked(options["forked"]) {
    seed_streams(rng, kBlockSeed, {.tp_rank = tp.rank(), .tp_size = tp.size()});
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& w2) {
    const at::Tensor region = copy_with_all_reduce_backward(x, tp, "block");
    const at::Tensor inner = at::gelu(region.matmul(w1.t()));
    const at::Tensor hidden =
        forked ? dropout(inner, p, rng, kRegion)  // the surrounding fork's stream
               : region_dropout(inner, p, HeldOverTp::kParts, rng, kRegion);
    const at::Tensor sum = all_reduce_with_identity_backward(hidden.matmul(w2.t()), tp, "block");
    std::optional<RngTracker::Fork> alike;
    if (forked) alike.emplace(rng.fork(kDataParallelRng));
    return x + region_dropout(sum, p, HeldOverTp::kAlike, rng, kResidual);
  }

  DrawLog log;
  RngTracker rng;
  SpreadActivation spread;
  Communicator& tp;
  double p;
  bool forked;
};

at::Tensor run_block(const std::shared_ptr<Block>& block, const TensorsByName& local,
                     const at::Tensor& x, const Options& options) {
  std::optional<RngTracker::Fork> region;
  if (block->forked) region.emplace(block->rng.fork());
  if (!recomputes_block(options)) return block->forward(x, local.at("w1"), local.at("w2"));
  const bool spreads = options["block"] == "spread";
  return checkpoint(
      [block, w1 = local.at("w1"), w2 = local.at("w2")](const std::vector<at::Tensor>& inputs) {
        return std::vector<at::Tensor>{block->forward(inputs[0], w1, w2)};
      },
      {x}, options["replays"] ? &block->rng : nullptr,
      {.first_input = spreads ? &block->spread : nullptr})[0];
}

at::Tensor run_norm(const TensorsByName& local, const at::Tensor& y, const Options& options) {
  const at::Tensor v = local.at("v");
  const CheckpointBody body = [gain = local.at("gain"), shared = options["shared"].get<bool>()](
                                  const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{norm_of(inputs[0], gain, shared)};
  };
  if (options["norm"] == "checkpoint") return checkpoint(body, {y}, nullptr)[0].matmul(v.t());
  if (options["norm"] != "without_output") return body({y})[0].matmul(v.t());
  CheckpointWithoutOutput norm;
  const at::Tensor out = norm.run(body, {y}, nullptr)[0].matmul(v.t());
  norm.discard_outputs_until(out);
  return out;
}

WorkloadTensors draws_of(const DrawLog& log, Phase phase, const std::string& suffix) {
  return {{std::string("draw.") + kRegion + suffix, log.tensor(kRegion, phase),
           Layout({Cut::even(0, "tp")})},
          {std::string("draw.") + kResidual + suffix, log.tensor(kResidual, phase)}};
}

struct BlockForward {
  at::Tensor y, out;
  int64_t kept_bytes;  // held for the backward: an upper bound of the saved tensors
};

BlockForward run_forward(const std::shared_ptr<Block>& block, const TensorsByName& local,
                         const Options& options, const WorkloadNotes& notes) {
  const int64_t before = notes.tensor_bytes();
  at::Tensor y = run_block(block, local, local.at("x") * 1, options);
  const at::Tensor seen = y.detach().clone();
  const at::Tensor out = run_norm(local, y, options);
  y = at::Tensor();
  return {seen, out, notes.tensor_bytes() - before - static_cast<int64_t>(seen.nbytes())};
}

// The bytes of a forward that saves everything, on streams of its own.
int64_t bytes_without_recomputing(const TensorsByName& local, MeshComm& comm, Options options,
                                  const WorkloadNotes& notes) {
  options["block"] = options["norm"] = "plain";
  const auto block = std::make_shared<Block>(comm.along("tp"), options);
  return run_forward(block, local, options, notes).kept_bytes;
}

WorkloadTensors sharded_block(const TensorsByName& local, MeshComm& comm, const Options& options,
                              WorkloadNotes& notes) {
  check_dealt(options, comm.mesh());
  const auto block = std::make_shared<Block>(comm.along("tp"), options);
  const int64_t everything = bytes_without_recomputing(local, comm, options, notes);
  const BlockForward forward = run_forward(block, local, options, notes);
  notes.figures["kept_bytes"] = {{"before", everything}, {"after", forward.kept_bytes}};
  notes.after_backward = [block, &notes, again = recomputes_block(options)] {
    notes.warnings = block->rng.warnings();
    return again ? draws_of(block->log, Phase::kRecompute, " again") : WorkloadTensors();
  };
  WorkloadTensors outputs = draws_of(block->log, Phase::kForward, "");
  outputs.push_back({"y", forward.y, over_dp()});
  outputs.push_back({"out", forward.out, over_dp()});
  return outputs;
}

}  // namespace

Workload checkpoint_workload() {
  return {.name = "checkpointed_block",
          .inputs = block_inputs,
          .plain = plain_block,
          .sharded_with_notes = sharded_block,
          .rounds_inside = true};
}

}  // namespace shardproof::sim::proofs
