// A run that a program of PyTorch recorded: every rank's pieces of its tensors. The format is in
// docs/recorded_runs.md.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/precision.h"
#include "mesh/mesh.h"
#include "observe/observation_kind.h"
#include "observe/phase.h"
#include "sim/case/case_spec.h"
#include "sim/uses/recorded/newton_schulz.h"
#include "tensor/tensor_view.h"

namespace shardproof::sim::recorded {

// Where a piece lies in the global tensor.
struct Place {
  enum class Kind {
    kBox,      // [offset, offset + shape)
    kFlat,     // elements [begin, end) of the row-major tensor
    kUnknown,  // a plain tensor of which nothing is known
  };
  Kind kind = Kind::kUnknown;
  std::vector<int64_t> offset = {};
  int64_t begin = 0, end = 0;

  bool operator==(const Place&) const = default;
  auto operator<=>(const Place&) const = default;
};

inline constexpr std::string_view kOutputSuffix = ".output";  // of the name of a module's output

struct RecordedPiece {
  int64_t line = 0;  // in the rank's jsonl file, from 1
  ObservationKind kind = ObservationKind::kUnknown;
  std::string name;  // "grad.layers.0.weight", "param.layers.0.weight", "exp_avg.layers.0.weight",
                     // "loss", "grad_norm", "logprobs", "layers.0.output", "layers.0.grad_output"
  Phase phase = Phase::kForward;
  int64_t step = 0;  // parameters of step 0 are those at the start
  int64_t microbatch = 0;
  int64_t order = -1;  // in which this rank computed it, within its step and phase; -1: not known
  int64_t rank = 0;
  std::vector<int64_t> shape, global_shape;
  Place place;
  bool is_concluded = false;  // the place and the global shape, from the number of its rows alone
  std::vector<std::string> partial_axes = {};  // an addend over these axes; empty: it is the value
  bool is_mean = false;                        // the mean over partial_axes counts, not the sum
  TensorView values;                           // of `shape`
};

// The digest of a module's output. The values were not recorded.
struct RecordedHash {
  RecordedPiece piece;  // without values
  int64_t rows = -1;    // the first of the rank's rows in the global batch; -1: not known
  uint64_t digest = 0;
};

// The parameters of one group of an optimizer, by the names that the run has, and its numbers.
struct ParameterGroup {
  std::set<std::string> parameters = {};
  OptimizerSpec optimizer = {};
  bool knows_optimizer = false;                      // as in RecordedRun
  std::vector<double> lr = {};                       // of each step, when recorded
  std::map<std::string, std::string> settings = {};  // what run.json says of it, as JSON
};

struct RecordedRun {
  std::string folder;
  Mesh mesh;
  int64_t world_size = 1;
  int64_t steps = 0;
  int64_t from_step = 0;  // of a resumed run: how many steps came before its start
  Precision precision = Precision::kFloat64;  // the narrowest dtype of its values
  OptimizerSpec optimizer = {};
  bool knows_optimizer = false;  // `optimizer` is the run's, and its rule is one that we know
  std::vector<double> lr = {};   // of each step, when recorded
  std::map<std::string, std::string> settings = {};  // of the optimizer, as of a ParameterGroup
  std::string only = {};    // the patterns of parameters that were recorded, as JSON
  std::string rows = {};    // how many first rows of each parameter were recorded, as JSON
  int64_t batch_rows = 0;   // that shardproof.batch cut; 0: it was not called, or is not known
  int64_t batch_parts = 0;  // into which it cut them
  std::vector<RecordedPiece> pieces = {};   // by rank, in the order observed
  std::vector<RecordedHash> hashes = {};    // by rank, in the order observed
  std::set<std::string> not_compared = {};  // names that were left out (placement.h)
  bool is_file = false;                     // a file of full tensors (answer_file.h), no run
  // Of a run of one rank: its repeats with other roundings (record(.., noise=k)), by k.
  std::vector<RecordedRun> repeats = {};
  // Of an optimizer whose groups differ. `optimizer` and `lr` are those of the first.
  std::vector<ParameterGroup> groups = {};
  // How a matrix optimizer moves a parameter, by its name.
  std::map<std::string, MatrixRule> matrices = {};
  // Of random generators after each step, by rank, in the order observed.
  std::vector<RecordedHash> random_states = {};
};

// Whether it is a scalar of the optimizer's step: a norm, a factor of clipping, a learning rate.
bool is_step_scalar(ObservationKind kind);

// Whether it is a buffer, or an optimizer's count of steps for a parameter: compared where both
// runs have it.
bool is_optional_state(ObservationKind kind);

// Whether it is a moment or another state that an optimizer keeps, or a count of its steps.
bool is_optimizer_state(ObservationKind kind);

// The place of a tensor in its phase, whatever the order in which a script records: in the forward
// pass scalars come after the tensors that they are made of; in an optimizer's step the gradients,
// its scalars, counts of steps, states, parameters, and buffers.
int64_t place_in_phase(Phase phase, ObservationKind kind, bool is_scalar);

// Whether the folder looks like a recorded run: it holds run.json.
bool is_recorded_run(const std::string& folder);

// Reads and checks all files, those of the repeats in noise<k>/ too. Throws Error(kBadInput) with
// file and line for a run that was not closed, a missing rank or one without a piece, tensors
// without a line, a key or value that the format does not have, a box outside of its tensor, and a
// tensor whose shape or dtype differs from its line.
RecordedRun read_recorded_run(const std::string& folder);

}  // namespace shardproof::sim::recorded
