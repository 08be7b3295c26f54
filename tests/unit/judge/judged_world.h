// A world without ranks for the tests of the judge: full tensors are cut as ranks would hold them,
// a planted bug changes the pieces, recorders compare them, and the judge decides.
#pragma once

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <functional>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "sim/case/recorder/golden_recorder.h"
#include "sim/judge/probe/rank_recorder.h"
#include "sim/judge/verdict/verdict.h"
#include "tensor/aten_view.h"
#include "tensor/shard.h"

namespace shardproof::sim::judge {

// A memory file that is closed with its scope.
struct MemoryFile : OwnedFd {
  MemoryFile() : OwnedFd(::memfd_create("golden", MFD_CLOEXEC)) {}
  int fd() const { return get(); }
};

// Elements around 1 of both signs, all different; the same for the same seed.
inline at::Tensor numbered(const std::vector<int64_t>& shape, int64_t seed = 1) {
  at::Tensor out = at::empty(shape, at::kDouble);
  double* data = out.mutable_data_ptr<double>();
  uint64_t state = static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15;
  for (int64_t i = 0; i < out.numel(); ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    data[i] = static_cast<double>(state >> 11) / 4503599627370496.0 - 1.0;
  }
  return out;
}

inline CaseSpec spec_of(int64_t dp, int64_t tp, Precision precision = Precision::kFloat64) {
  CaseSpec spec;
  spec.name = "test/case";
  spec.precision = precision;
  spec.parallel.dp = dp;
  spec.parallel.tp = tp;
  return spec;
}

inline GoldenRecord golden_from(const std::vector<Observation>& observations,
                                bool activations = true, const KeptRows& rows = {}) {
  GoldenRecorder recorder(activations, -1, rows);
  for (const Observation& observation : observations) recorder.observe(observation);
  const MemoryFile file;
  recorder.write(file.fd(), {{"made_by", "test"}});
  return GoldenRecord::from_fd(file.fd());
}

// The report of a rank that saw these.
inline RankReport observe_all(const CaseSpec& spec, const GoldenRecord& golden,
                              const std::vector<Observation>& observations, int64_t rank = 0) {
  RankRecorder recorder(spec, spec.parallel.mesh(), rank, &golden, {});
  for (const Observation& observation : observations) recorder.observe(observation);
  return recorder.finish();
}

inline RankEnding finished(int64_t rank, const RankReport& report) {
  RankEnding ending;
  ending.rank = rank;
  ending.bytes = encode(report);
  return ending;
}

class JudgedWorld {
 public:
  // Replaces what a rank holds of one tensor.
  using Plant = std::function<void(int64_t rank, Observation& observation)>;

  JudgedWorld(CaseSpec spec, std::vector<Observation> golden)
      : spec_(std::move(spec)),
        mesh_(spec_.parallel.mesh()),
        observations_(std::move(golden)),
        golden_(
            golden_from(observations_, true, {.count = spec_.sample_rows, .seed = spec_.seed})) {}

  // Sets the layout of a tensor; the default is Replicate.
  JudgedWorld& cut_as(const std::string& name, Layout layout) {
    layouts_[name] = std::move(layout);
    return *this;
  }
  const Mesh& mesh() const { return mesh_; }
  const GoldenRecord& golden() const { return golden_; }

  std::vector<RankEnding> endings(const Plant& plant = {}) const {
    std::vector<RankEnding> endings;
    for (int64_t rank = 0; rank < mesh_.world_size(); ++rank) {
      int64_t calls = 0;
      RankRecorder recorder(spec_, mesh_, rank, &golden_, [&] { return calls; });
      for (Observation observation : observations_) {
        const auto layout = layouts_.find(observation.name);
        if (layout != layouts_.end()) observation.layout = layout->second;
        observation.tensor = cut(observation.tensor, observation.layout, mesh_, rank);
        if (plant) plant(rank, observation);
        calls += 2;
        if (observation.tensor.defined()) recorder.observe(observation);
      }
      RankReport report = recorder.finish();
      report.call_counts[{"tp", "all_reduce"}] = calls;
      for (int64_t i = 0; i < calls; ++i) {
        report.calls.push_back("all_reduce(sum) tp[0,1] [4] float64 call " + std::to_string(i));
      }
      endings.push_back(finished(rank, report));
    }
    return endings;
  }
  CaseResult run(const Plant& plant = {}) const { return judge::judge(spec_, endings(plant)); }

 private:
  CaseSpec spec_;
  Mesh mesh_;
  std::vector<Observation> observations_;
  GoldenRecord golden_;
  std::map<std::string, Layout> layouts_;
};

inline Observation seen(std::string name, at::Tensor tensor, Phase phase = Phase::kStep,
                        int64_t step = 1) {
  Observation observation;
  observation.kind = kind_of_name(phase, name);
  observation.name = std::move(name);
  observation.phase = phase;
  observation.step = step;
  observation.tensor = std::move(tensor);
  return observation;
}

}  // namespace shardproof::sim::judge
