// Experts of limited capacity in training on one device: a route that is not kept has
// the weight 0.
#pragma once

#include <memory>

#include "model/batch.h"
#include "model/decoder.h"
#include "sim/case/case_spec.h"

namespace shardproof::golden {

class LimitedExperts {
 public:
  // Wraps the experts of `model`, where the case limits them.
  LimitedExperts(const sim::CaseSpec& spec, Decoder& model);
  // The next forward is of this batch, and limited; others are not.
  void begin(const Batch& batch);
  int64_t end();  // returns the routes that were dropped
  bool active() const { return state_ != nullptr; }

 private:
  struct State;
  const sim::CaseSpec& spec_;
  std::shared_ptr<State> state_;  // null: there is no limit
};

}  // namespace shardproof::golden
