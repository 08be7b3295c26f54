// The cost of central matching per collective call: two ranks sum four numbers again and again,
// with and without reporting every call to control, which matches it.
//
//   shardproof-call-cost [CALLS]
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "comm/communicator.h"
#include "sim/world/match/matcher.h"
#include "sim/world/process/call_lines.h"
#include "tests/multirank/small_ranks.h"

namespace shardproof::sim::world {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double once(WorldPool& pool, const std::string& backend, int64_t ranks, int64_t calls,
            bool silent) {
  const auto start = Clock::now();
  const auto endings = pool.run_case(
      small_case(backend, ranks, {{"calls", calls}, {"silent", silent}, {"unchecked", true}}), -1,
      false);
  for (const RankEnding& ending : endings) {
    if (ending.kind != ResultKind::kFinished) throw std::runtime_error(ending.message);
  }
  return microseconds_since(start) / static_cast<double>(calls);
}

double cpu_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

// The whole cost of matching for a call, without waiting: the line is made, put into shared memory,
// read on the other side and matched. CPU time per call and rank, independent of other work.
double matching_alone(int64_t ranks, int64_t calls) {
  CallLines lines(ranks);
  Matcher matcher(ranks);
  std::vector<int64_t> members;
  for (int64_t rank = 0; rank < ranks; ++rank) members.push_back(rank);
  Call call;
  call.group = "world";
  call.op = Op::kAllReduce;
  call.reduce = ReduceOp::kSum;
  call.label = "model.layers.11.mlp.down_proj forward";
  call.dtype = "float64";
  call.shape = {2, 16, 48};
  call.group_ranks = std::make_shared<const std::vector<int64_t>>(members);
  const double start = cpu_microseconds();
  for (int64_t number = 0; number < calls; ++number) {
    call.sequence = number;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      call.rank = call.group_rank = rank;
      lines.put(rank, encode_line({call}));
      const auto text = lines.take(rank);
      const auto line = text ? decode_line(*text) : std::nullopt;
      if (!line || matcher.line(*line)) throw std::runtime_error("the calls do not match");
    }
  }
  return (cpu_microseconds() - start) / static_cast<double>(calls * ranks);
}

void measure(WorldPool& pool, const std::string& backend, int64_t ranks, int64_t calls) {
  constexpr int kRounds = 5;
  double with = once(pool, backend, ranks, calls / 10, false);  // a warm-up
  double without = with;
  for (int round = 0; round < kRounds; ++round) {  // the fastest round of each counts
    const double untold = once(pool, backend, ranks, calls, true);
    const double told = once(pool, backend, ranks, calls, false);
    without = round == 0 ? untold : std::min(without, untold);
    with = round == 0 ? told : std::min(with, told);
  }
  fmt::print(
      "{:<9} {} ranks   {:8.2f} us a call announced and matched   {:8.2f} not announced   "
      "{:+7.2f}\n",
      backend, ranks, with, without, with - without);
  std::fflush(stdout);
}

int run(int64_t calls) {
  WorldPool pool(small_workers());
  for (const int64_t ranks : {2, 8, 64}) {
    fmt::print("matching alone, {:>2} ranks: {:6.2f} us of CPU a call and rank\n", ranks,
               matching_alone(ranks, 20000 / ranks));
  }
  std::fflush(stdout);
  for (const int64_t ranks : {2, 4}) {
    for (const char* backend : {"emulated", "gloo"}) measure(pool, backend, ranks, calls);
  }
  return 0;
}

}  // namespace
}  // namespace shardproof::sim::world

int main(int argc, char** argv) {
  const int64_t calls = argc > 1 ? std::atoll(argv[1]) : 1000;
  return shardproof::sim::world::run(calls);
}
