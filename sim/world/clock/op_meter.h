// The cost of a thread's ops: a fixed price for each, and a price for the multiplications of matrix
// products. A program has the same cost in every run.
#pragma once

#include <cstdint>

namespace shardproof::sim::world {

class OpMeter {
 public:
  // Counts this thread's ops from now on. gflop_per_s 0: a product costs the same as any op.
  OpMeter(double op_us, double gflop_per_s);
  ~OpMeter();
  OpMeter(const OpMeter&) = delete;
  OpMeter& operator=(const OpMeter&) = delete;

  // Microseconds of the ops since the last call.
  double take_us();

 private:
  double op_us_, us_per_flop_;
  int64_t depth_ = 0;  // of the op that runs
  int64_t ops_ = 0;
  double flops_ = 0;
  uint64_t handle_ = 0;  // of RecordFunction's callback
};

}  // namespace shardproof::sim::world
