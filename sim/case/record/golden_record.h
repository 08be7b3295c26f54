// The record of a golden run: every observation by name, in order, with the data to judge it. It is
// a safetensors blob (a memfd or a cache file), and all processes map the same pages.
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

// Magnitudes above this count neither for scale nor for phase_scale (masks of -1e38, for example).
inline constexpr double kLargestCounted = 1e30;

struct GoldenTensor {
  at::Tensor value;   // the full tensor as float64, or in its integer dtype
  int64_t order = 0;  // position in the golden's own run
  Phase phase = Phase::kForward;
  int64_t step = 0;
  std::string name;
  bool token_dims = false;  // dims 0 and 1 are samples and positions
  double scale = 0;         // largest finite magnitude in it (<= 1e30)
  double phase_scale = 0;   // largest over the tensors of the same phase and step
  // Largest distance of a member of the golden's ensemble in the case's precision from `value`;
  // infinite when members compute different tensors. 0 for float64.
  double scatter = 0;
  // Largest |<y, r> / <r, r> - 1| over the members y, with r this tensor: how far from 1 the factor
  // of the whole tensor is. Infinite where `scatter` is. `square` is <r, r>.
  double factor_scatter = 0;
  double square = 0;
  // A forward tensor of more than one number that lower precisions keep in float32 (logprobs), so
  // its members' error includes no rounding to the precision. One number may be exact by chance.
  bool kept_in_float32 = false;
};

// Collects a golden run and writes the blob.
class GoldenRecorder final : public Probe {
 public:
  // With `activations` false, forward outputs and input gradients are not kept, except logprobs and
  // loss. Parameters and optimizer state of step `last_step` are kept without a copy because
  // nothing writes to them again (write() checks it); -1: no step is known to be the last.
  explicit GoldenRecorder(bool activations, int64_t last_step = -1)
      : activations_(activations), last_step_(last_step) {}
  bool listens(Phase phase) const override;
  void observe(const Observation& observation) override;

  // Widens the scatter of every tensor by one member: the same run in a lower precision.
  void add_member(const GoldenRecorder& member);
  // The scatter so far, by record_key.
  std::map<std::string, double> scatter() const;
  // Throws Error(kBadInput) "a fault of the golden" when a parameter, gradient, loss or logprob is
  // not finite. Writes `metadata` beside the tensors.
  void write(int fd, const std::map<std::string, std::string>& metadata) const;
  // The values under the names of expected.safetensors (expected_names.h).
  NamedTensors expected_names(int64_t steps) const;
  // The values under the names of a policy's moments (expected_names.h).
  NamedTensors moment_names() const;
  const std::vector<GoldenTensor>& tensors() const { return tensors_; }

 private:
  bool activations_;
  int64_t last_step_;
  bool keeps(const Observation& observation) const;
  template <class Names>
  NamedTensors named(const Names& names_of) const;

  std::vector<GoldenTensor> tensors_;
  // The version of each tensor when observed; write() checks that nothing wrote to it afterwards.
  std::vector<uint32_t> versions_;
  std::unordered_map<std::string, size_t> by_key_;
};

class GoldenRecord {
 public:
  // Maps the blob. The tensors are views of the mapping and keep it alive; the caller may close the
  // descriptor. Throws Error(kBadInput) when it is not a golden's blob or is damaged.
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
