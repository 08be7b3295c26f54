// A rank's questions to the store that control holds (control_store.h), from any thread.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <string>

#include "base/mutex.h"
#include "sim/world/process/control_store.h"

namespace shardproof::sim::world {

class StoreQuestions {
 public:
  explicit StoreQuestions(std::function<void(const std::string& question)> send)
      : send_(std::move(send)) {}

  // As AskStore.
  std::optional<std::string> ask(nlohmann::json request, std::chrono::milliseconds timeout);
  void answered(const std::string& answer);

 private:
  std::function<void(const std::string& question)> send_;
  Mutex mutex_;
  uint64_t last_id_ SHARDPROOF_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::promise<std::string>> open_ SHARDPROOF_GUARDED_BY(mutex_);
};

}  // namespace shardproof::sim::world
