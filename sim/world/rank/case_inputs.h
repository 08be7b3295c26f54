// The weights, batch and golden of a case, loaded once per process and shared by its ranks.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "model/batch.h"
#include "model/config.h"
#include "model/weights.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim {

struct CaseInputs {
  ModelConfig config;
  std::shared_ptr<const WeightMap> weights;  // full, read-only
  Batch batch;                               // global, read-only
};

// Throws Error(kBadInput) as load_weights and load_batch do. Without `reads_weights` a folder's
// weights are weights_to_come(): for a process whose rank is given its shards.
std::shared_ptr<const CaseInputs> load_case_inputs(const CaseSpec& spec, bool reads_weights = true);

// Keeps what the ranks of one process ask for in the same case, and cases of one sweep again.
class CaseInputsCache {
 public:
  // Weights that are to come when they are first asked for may be there already: another rank
  // reads.
  std::shared_ptr<const CaseInputs> get(const CaseSpec& spec, bool reads_weights = true);
  // The golden of a descriptor, mapped once: its pages are touched for the first time only once.
  // Small ones stay mapped for the next case, as its own golden or to be let go. Throws as
  // GoldenRecord::from_fd does.
  std::shared_ptr<const GoldenRecord> golden(int fd);

 private:
  std::mutex mutex_;
  std::string key_;
  std::shared_ptr<const CaseInputs> inputs_;
  bool has_weights_ = false;
  std::pair<uint64_t, uint64_t> golden_file_ = {};  // device and inode, unique while it is mapped
  std::weak_ptr<const GoldenRecord> golden_;
  std::shared_ptr<const GoldenRecord> small_golden_;
};

}  // namespace shardproof::sim
