// The weights, batch and golden of a case, loaded once per process and shared by its ranks.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/weights.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim::world {

struct CaseInputs {
  ModelConfig config;
  std::shared_ptr<const WeightMap> weights;  // full, read-only
  Batch batch;                               // global, read-only
};

// Shares inputs between the ranks of a process, and between consecutive cases of a sweep.
class CaseInputsCache {
 public:
  // Throws Error(kBadInput) as load_weights and load_batch do. Without `reads_weights` the weights
  // of a folder may be weights_to_come(), for a process whose rank receives its shards.
  std::shared_ptr<const CaseInputs> get(const CaseSpec& spec, bool reads_weights = true);
  // The golden of a descriptor, mapped once for all ranks; null for -1. A small one stays mapped
  // until the next case, which may use it. Throws as GoldenRecord::from_fd does.
  std::shared_ptr<const GoldenRecord> golden(int fd);

 private:
  Mutex mutex_;
  std::string key_ SHARDPROOF_GUARDED_BY(mutex_);
  std::string draws_key_ SHARDPROOF_GUARDED_BY(mutex_);
  std::shared_ptr<const CaseInputs> inputs_ SHARDPROOF_GUARDED_BY(mutex_);
  bool has_weights_ SHARDPROOF_GUARDED_BY(mutex_) = false;
  // Device and inode of the mapped file.
  std::pair<uint64_t, uint64_t> golden_file_ SHARDPROOF_GUARDED_BY(mutex_) = {};
  std::weak_ptr<const GoldenRecord> golden_ SHARDPROOF_GUARDED_BY(mutex_);
  std::shared_ptr<const GoldenRecord> small_golden_ SHARDPROOF_GUARDED_BY(mutex_);
};

}  // namespace shardproof::sim::world
