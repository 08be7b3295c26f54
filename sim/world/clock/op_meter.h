// What the ops of the thread it lives on cost: a fixed price of each, and of matrix products their
// multiplications. The same program has the same price in every run.
#pragma once

#include <cstdint>
#include <memory>

namespace shardproof::sim {

class OpMeter {
 public:
  // Listens from now on, on this thread. gflop_per_s 0: a matrix product costs what any op costs.
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
