// A layer, or any other sharded function, beside its plain twin: what it takes to judge one.
//
//   inputs    draws full tensors from the seed and says how the ranks hold each
//   plain     full tensors in, full tensors out: one device, as plainly as the definition
//   sharded   this rank's parts in, this rank's parts out, over the communicators of the mesh
//
// The harness cuts the inputs, runs the plain function once and the sharded one on every rank,
// sends a drawn gradient (another one at each position of each output) back through both, and
// judges the outputs and the gradients of all floating inputs. A scenario names it:
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

namespace shardproof::sim {

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
  at::Tensor tensor;   // full; of `sharded`: this rank's part
  Layout layout = {};  // how the ranks hold it; of `plain`: not looked at
  // Of an input: the axes over which the ranks' gradients are addends of the whole one (a weight
  // that data parallel ranks hold alike). Of an output: the axes over which it is itself an addend.
  std::vector<std::string> partial_axes = {};
};

using WorkloadTensors = std::vector<WorkloadTensor>;
using TensorsByName = std::map<std::string, at::Tensor>;
using Options = nlohmann::json;

// An option of every workload: the ranks' inputs, and the gradients that enter at their outputs,
// are not contiguous (the first and the last dim have changed places in memory).
inline constexpr const char* kStridedInputs = "strided_inputs";

// Of any mesh: an option that counts ranks is not larger.
inline constexpr int64_t kMostRanks = 65536;

// What a sharded function may leave beside its outputs.
struct WorkloadNotes {
  // Of this rank's thread, now: bytes of the tensors that it holds.
  std::function<int64_t()> tensor_bytes = {};
  // Into `metrics.figures` of the rank's results.
  nlohmann::json figures = nlohmann::json::object();
  // Sentences into the rank's `warnings`: what is odd, but no verdict.
  std::vector<std::string> warnings = {};
  // Called when the pass back is through: more outputs, judged like the others. May stay empty.
  std::function<WorkloadTensors()> after_backward = {};
};

struct Workload {
  std::string name;        // of letters, digits and '_'
  std::string about = {};  // one sentence, for `describe`
  // Options with their default values; a scenario sets no others. A whole number stays one.
  Options options = Options::object();
  std::function<WorkloadTensors(Draw& draw, const Options& options)> inputs;
  std::function<WorkloadTensors(const TensorsByName& full, const Options& options)> plain;
  // Outputs have the names of the plain ones; all are judged, so a step in between may be one too.
  // May throw Error(kRefused) before the first collective: this mesh cannot cut it.
  std::function<WorkloadTensors(const TensorsByName& local, MeshComm& comm, const Options& options)>
      sharded = {};
  // Instead of `sharded`, for one that has more to say.
  std::function<WorkloadTensors(const TensorsByName& local, MeshComm& comm, const Options& options,
                                WorkloadNotes& notes)>
      sharded_with_notes = {};
};

}  // namespace shardproof::sim
