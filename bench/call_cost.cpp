// What central matching costs per collective call: two ranks sum four numbers again and again, with
// every call told to control and matched there, and without.
//
//   shardproof-call-cost [CALLS]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "sim/match/matcher.h"
#include "tests/multirank/small_ranks.h"

namespace shardproof::sim {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double once(WorldPool& pool, const std::string& backend, int64_t ranks, int64_t calls,
            bool silent) {
  const auto start = Clock::now();
  const auto endings = pool.run_case(
      small_case(backend, ranks, {{"calls", calls}, {"silent", silent}, {"unchecked", true}}), -1,
      false);
  for (const RankEnding& ending : endings) {
    if (ending.kind != "finished") throw std::runtime_error(ending.message);
  }
  return microseconds_since(start) / static_cast<double>(calls);
}

// Per call and rank: the line made and read back as it is over a socket, and matched.
double matching_alone(int64_t ranks, int64_t calls) {
  Matcher matcher(ranks);
  std::vector<int64_t> members;
  for (int64_t rank = 0; rank < ranks; ++rank) members.push_back(rank);
  CollectiveCall call;
  call.group = "world";
  call.op = "all_reduce";
  call.reduce_op = "sum";
  call.label = "model.layers.11.mlp.down_proj forward";
  call.dtype = "float64";
  call.shape = {2, 16, 48};
  call.group_ranks = std::make_shared<const std::vector<int64_t>>(members);
  const auto start = Clock::now();
  for (int64_t number = 0; number < calls; ++number) {
    call.sequence = number;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      call.group_rank = rank;
      const auto line = decode_line(encode_line(line_of(call, rank)));
      if (!line || matcher.line(*line)) throw std::runtime_error("the calls do not match");
    }
  }
  return microseconds_since(start) / static_cast<double>(calls * ranks);
}

void measure(WorldPool& pool, const std::string& backend, int64_t ranks, int64_t calls) {
  constexpr int kRounds = 5;
  std::vector<double> with, without;
  for (int round = 0; round <= kRounds; ++round) {  // the first warms the world up
    const double plain = once(pool, backend, ranks, calls, true);
    const double told = once(pool, backend, ranks, calls, false);
    if (round > 0) without.push_back(plain);
    if (round > 0) with.push_back(told);
  }
  fmt::print("{:<9} {:>5} ranks   {:8.2f} us a call told and matched   {:8.2f} untold   {:+7.2f}\n",
             backend, ranks, median(with), median(without), median(with) - median(without));
}

int run(int64_t calls) {
  WorldPool pool(small_workers());
  fmt::print("the line and the matcher alone: {:.2f} us a call and rank (2 ranks), {:.2f} (64)\n",
             matching_alone(2, calls), matching_alone(64, calls / 16));
  for (const int64_t ranks : {2, 4}) {
    for (const char* backend : {"emulated", "gloo"}) measure(pool, backend, ranks, calls);
  }
  return 0;
}

}  // namespace
}  // namespace shardproof::sim

int main(int argc, char** argv) {
  const int64_t calls = argc > 1 ? std::atoll(argv[1]) : 4000;
  return shardproof::sim::run(calls);
}
