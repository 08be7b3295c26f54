// A workload: a layer, or any other sharded function, and the plain function that it must equal.
//
//   inputs    draws full tensors from the seed and gives their layouts
//   plain     takes and returns full tensors on one device, as plainly as the definition
//   sharded   takes and returns this rank's parts, over the communicators of the mesh
//
// The harness cuts the inputs, runs the plain function once and the sharded one on every rank,
// draws a gradient for each output (different at each position) for the backward of both, and
// compares the outputs and the gradients of all floating inputs. A scenario selects a workload by
// `workload: NAME`, with `options`, mesh, precision and seed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "mesh/layout.h"
#include "sim/case/scenario/known_workload.h"

namespace shardproof::sim::proofs {

// Draws from one seed; each draw has its own stream, counted in the order of the calls.
class Draw {
 public:
  explicit Draw(int64_t seed) : seed_(seed) {}
  at::Tensor normal(const std::vector<int64_t>& shape);                   // float64, mean 0, size 1
  at::Tensor integers(int64_t below, const std::vector<int64_t>& shape);  // int64, 0 <= x < below

 private:
  at::Generator next();
  int64_t seed_;
  int64_t count_ = 0;
};

struct WorkloadTensor {
  std::string name;
  at::Tensor tensor;   // full, except from `sharded`: this rank's part
  Layout layout = {};  // ignored in the outputs of `plain`
  // Of an input: axes over which each rank's gradient is one addend (a weight that data parallel
  // ranks hold equally). Of an output: axes over which each rank's tensor is one addend.
  std::vector<std::string> partial_axes = {};
};

using WorkloadTensors = std::vector<WorkloadTensor>;
using TensorsByName = std::map<std::string, at::Tensor>;
using Options = nlohmann::json;  // {name: value}, all that the workload has

// Dim 0, of samples or rows, is cut evenly over dp.
inline Layout over_dp() { return Layout({Cut::even(0, "dp")}); }

// Results of a sharded function besides its outputs.
struct WorkloadNotes {
  // Bytes of the tensors that this rank's thread holds now.
  std::function<int64_t()> tensor_bytes = {};
  // Added to `metrics.figures` of the rank's results.
  nlohmann::json figures = nlohmann::json::object();
  // Sentences for the rank's `warnings`, which change no verdict.
  std::vector<std::string> warnings = {};
  // Called after the backward; returns more outputs to compare. May stay empty.
  std::function<WorkloadTensors()> after_backward = {};
};

struct Workload {
  std::string name;              // of letters, digits and '_'
  std::string about = {};        // one sentence, for `describe`
  WorkloadOptions options = {};  // a scenario sets no others
  std::function<WorkloadTensors(Draw& draw, const Options& options)> inputs;
  std::function<WorkloadTensors(const TensorsByName& full, const Options& options)> plain;
  // The outputs have the names of the plain ones; an intermediate value may be one. A rank that
  // returns one returns all of them, its copies too; one that returns none has none. May throw
  // Error(kRefused) before the first collective if this mesh cannot cut the inputs.
  std::function<WorkloadTensors(const TensorsByName& local, MeshComm& comm, const Options& options)>
      sharded = {};
  // Replaces `sharded` when the function also writes notes.
  std::function<WorkloadTensors(const TensorsByName& local, MeshComm& comm, const Options& options,
                                WorkloadNotes& notes)>
      sharded_with_notes = {};
  // Whether its intermediate values are rounded to the dtype of its inputs and amplified, as by a
  // tanh. Correct runs below float64 then differ as if the inputs were moved by roundings.
  bool rounds_inside = false;
};

}  // namespace shardproof::sim::proofs
