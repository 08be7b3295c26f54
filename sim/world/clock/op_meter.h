// The cost of a thread's ops: a fixed price for each, and a price for the multiplications of matrix
// products. A program has the same cost in every run.
#pragma once

#include <cstdint>
#include <memory>

namespace shardproof::sim {

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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardproof::sim
