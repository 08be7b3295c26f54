// The experts that one device chose when it scored a batch, and chooses again when it trains on
// parts of it.
#pragma once

#include <memory>

#include "model/decoder.h"
#include "sim/case/case_spec.h"

namespace shardproof::golden {

class KeptRoutes {
 public:
  // Wraps the selections of `model`, where the case replays.
  KeptRoutes(const sim::CaseSpec& spec, Decoder& model);
  void record_next() { set(Mode::kRecords); }  // the next forward
  void replay_next(int64_t first_sample);      // if something is recorded
  void stay_live() { set(Mode::kLive); }
  void forget();

 private:
  enum class Mode { kLive, kRecords, kReplays };
  struct State;
  void set(Mode mode);
  std::shared_ptr<State> state_;  // null: routes are always live
};

}  // namespace shardproof::golden
