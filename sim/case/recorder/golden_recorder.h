// Records a golden run: the probe that keeps its tensors and writes the blob of golden_record.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/probe.h"
#include "sim/case/record/golden_record.h"
#include "tensor/safetensors.h"

namespace shardproof::sim {

struct KeptTensor : GoldenFacts {
  at::Tensor value;
  // Whether `value` has only `rows` of what was observed; then `scale` and `finite` are of all.
  bool is_cut = false, finite = true;
  // When it was observed; write() checks that nothing wrote to it afterwards.
  uint32_t version = 0;
};

// Which rows of each tensor are kept (sim/case/record/sampled_rows.h).
struct KeptRows {
  int64_t count = 0;  // 0: all
  int64_t seed = 0;
  // When the run itself is of these samples of `all_samples` only; empty: of all.
  std::vector<int64_t> samples = {};
  int64_t all_samples = 0;
};

// Collects a golden run and writes the blob.
class GoldenRecorder final : public Probe {
 public:
  // With `activations` false, forward outputs and input gradients are not kept, except logprobs and
  // loss. Parameters and optimizer state of step `last_step` are kept without a copy because
  // nothing writes to them again (write() checks it); -1: no step is known to be the last.
  explicit GoldenRecorder(bool activations, int64_t last_step = -1, KeptRows rows = {})
      : activations_(activations), last_step_(last_step), rows_(std::move(rows)) {}
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
  const std::vector<KeptTensor>& tensors() const { return tensors_; }

 private:
  bool activations_;
  int64_t last_step_;
  KeptRows rows_;
  void keep_rows(const at::Tensor& whole, KeptTensor& kept) const;
  bool keeps(const Observation& observation) const;
  template <class Names>
  NamedTensors named(const Names& names_of) const;

  std::vector<KeptTensor> tensors_;
  std::unordered_map<std::string, size_t> by_key_;
};

}  // namespace shardproof::sim
