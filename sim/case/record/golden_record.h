// What a golden run leaves for the judge: every observation by name, in order, with what it takes
// to judge it. A safetensors blob (a memfd or a cache file); all processes map the same pages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/probe.h"
#include "tensor/safetensors.h"

namespace shardproof::sim {

// "forward 1 model.norm.output": phase, step and name identify an observation.
std::string record_key(Phase phase, int64_t step, const std::string& name);

// Magnitudes above this count neither for scale nor for phase_scale (masks of -1e38 and the like).
inline constexpr double kLargestCounted = 1e30;

struct GoldenTensor {
  at::Tensor value;   // float64 (or the integer dtype), full
  int64_t order = 0;  // position in the golden's own run
  Phase phase = Phase::kForward;
  int64_t step = 0;
  std::string name;
  bool token_dims = false;  // dims 0 and 1 are samples and positions
  double scale = 0;         // largest finite magnitude in it (<= 1e30)
  double phase_scale = 0;   // largest over the tensors of the same phase and step
  // Largest distance from `value` that any member of the golden's ensemble has in the case's
  // precision; infinite where the members differ in what they compute at all. 0 for float64.
  double scatter = 0;
  // With r this tensor and y a member: the largest |<y, r> / <r, r> - 1| of any member, that is how
  // far from 1 the factor is that the tensor as a whole has; infinite as scatter. And <r, r>.
  double factor_scatter = 0;
  double square = 0;
  // More than one number of a forward pass that lower precisions keep in float32 (logprobs): the
  // rounding of the precision itself is no error of theirs. A number alone may be right by chance.
  bool kept_in_float32 = false;
};

// Collects a golden run. Writes the blob.
class GoldenRecorder final : public Probe {
 public:
  // `activations` false: forward outputs and input gradients are not kept, except logprobs and
  // loss. `last_step`: parameters and optimizer state of this step are never written to again, so
  // they are kept without a copy (write() checks it); -1: no step is known to be the last.
  explicit GoldenRecorder(bool activations, int64_t last_step = -1)
      : activations_(activations), last_step_(last_step) {}
  bool listens(Phase phase) const override;
  void observe(const Observation& observation) override;

  // Widens the scatter of every tensor by one member: the same run in a lower precision.
  void add_member(const GoldenRecorder& member);
  // By record_key, the scatter so far.
  std::map<std::string, double> scatter() const;
  // Throws Error(kBadInput) "a fault of the golden" when a parameter, gradient, loss or logprob is
  // not finite. `metadata` is kept beside the tensors.
  void write(int fd, const std::map<std::string, std::string>& metadata) const;
  // The values under the names of expected.safetensors (expected_names.h).
  NamedTensors expected_names(int64_t steps) const;
  // The same of a policy's life.
  NamedTensors moment_names() const;
  const std::vector<GoldenTensor>& tensors() const { return tensors_; }

 private:
  bool activations_;
  int64_t last_step_;
  bool keeps(const Observation& observation) const;
  template <class Names>
  NamedTensors named(const Names& names_of) const;

  std::vector<GoldenTensor> tensors_;
  std::vector<uint32_t>
      versions_;  // of each tensor when observed: nobody may write to it afterwards
  std::unordered_map<std::string, size_t> by_key_;
};

class GoldenRecord {
 public:
  // Maps the blob; the tensors are views of the mapping and keep it alive. The descriptor may be
  // closed afterwards. Throws Error(kBadInput) when it is no golden's blob or a damaged one.
  static GoldenRecord from_fd(int fd);
  const GoldenTensor* find(Phase phase, int64_t step, const std::string& name) const;  // null: none
  const std::vector<GoldenTensor>& tensors() const { return tensors_; }  // in golden order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::vector<GoldenTensor> tensors_;
  std::unordered_map<std::string, size_t> by_key_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace shardproof::sim
