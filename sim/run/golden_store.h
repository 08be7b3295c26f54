// The goldens of one run: each is computed once, or comes from the cache of earlier runs.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "sim/run/golden_cache.h"
#include "sim/run/limits.h"
#include "sim/run/reference_run.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::run {

class GoldenStore {
 public:
  static constexpr int64_t kMostKept = 16;  // each is an open file

  struct Golden {
    world::TaskOutcome outcome;
    OwnedFd fd;            // the blob
    bool has_few = false;  // of the members of a lower precision; otherwise it has all
    std::shared_ptr<const PiecesFolder> pieces = nullptr;  // of another layout; `fd` is its index
  };
  using Ready = std::function<void(std::shared_ptr<const Golden>)>;

  // With `use_cache` false, goldens of earlier runs are not used, and none are kept. A golden that
  // is more than `limits` is bad input; without limits it is computed.
  GoldenStore(world::WorldPool& pool, bool use_cache, std::optional<MachineLimits> limits);
  ~GoldenStore();  // trims the cache
  GoldenStore(const GoldenStore&) = delete;
  GoldenStore& operator=(const GoldenStore&) = delete;

  using Members = golden::Members;
  // Calls `ready` once, now or later in the pool's wait_until.
  void get(const CaseSpec& spec, const Ready& ready, Members members = Members::kDue);
  // Starts the golden, which is forgotten if it fails before a call of get waits for it.
  void start(const CaseSpec& spec, Members members = Members::kDue);
  // Whether the golden that get() would wait for is being computed.
  bool is_computing(const CaseSpec& spec, Members members);
  // The number of goldens that are being computed.
  int64_t computing() const;
  // Computes the golden anew, waits for it, and writes its tensors to `dump_path` unless that is
  // "".
  std::shared_ptr<const Golden> make(const CaseSpec& spec, const std::string& dump_path);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<Golden> golden;
    bool ready = false;
    int64_t bytes = 0;
    std::vector<Ready> waiting;
  };
  struct Keys {
    std::string all;            // of the golden with all members that are due
    std::string few = "";       // with few of them; "" if all are needed
    bool outlive_runs = false;  // the cache may have it
  };
  static Keys keys_of(const CaseSpec& spec, Members members);
  // Key of the cache; "" if it keeps no such golden.
  static std::string full_key(const Keys& keys, const std::string& key);
  // The golden of the case: ready, or being computed from now on.
  std::shared_ptr<Entry> find_or_start(const CaseSpec& spec, Members members);
  // The golden of one of the keys, if there is one or it is being computed; null if not.
  std::shared_ptr<Entry> known(const Keys& keys);
  std::shared_ptr<Entry> known(const std::string& key, const std::string& full_key);
  std::shared_ptr<Golden> from_cache(const std::string& full_key) const;
  void settle(const std::shared_ptr<Entry>& entry, const std::string& full_key,
              world::TaskOutcome outcome);
  void forget_old();

  // Lets the reference layout of the case run instead of one device. Throws an Error if it cannot.
  void run_reference(const std::shared_ptr<Entry>& entry, const CaseSpec& spec, Members members);
  void run_reference(const std::shared_ptr<Entry>& entry,
                     const std::shared_ptr<ReferenceTensors>& tensors, int64_t run, int64_t last);

  world::WorldPool& pool_;
  bool use_cache_;
  std::optional<MachineLimits> limits_;
  bool kept_ = false;  // the cache has a new entry
  GoldenCache cache_;
  std::list<std::shared_ptr<Entry>> entries_;  // latest first
  // Ends with this object: the pool may serve goldens that nobody waited for after it.
  const std::shared_ptr<const bool> living_ = std::make_shared<const bool>(true);
};

}  // namespace shardproof::sim::run
