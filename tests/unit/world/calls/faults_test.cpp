// Planted faults: the calls at which they act, and the tensors that they change.
#include <ATen/ATen.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "sim/world/calls/fault_injection.h"
#include "sim/world/calls/fault_selection.h"
#include "sim/world/calls/spoil.h"
#include "sim/world/emulated/emulated_world.h"

namespace shardproof::sim {
namespace {

Call call_of(Op op, const std::string& label) {
  Call call;
  call.group = "tp[0,1]";
  call.op = op;
  call.label = label;
  call.bytes = 32;
  if (op == Op::kAllReduce) call.reduce = ReduceOp::kSum;
  return call;
}

TEST_CASE("a fault acts at the calls that it names", "[faults]") {
  FaultSpec fault{.kind = FaultKind::kDrop, .rank = 0, .label = "layers.*.q_proj forward"};
  const Call call = call_of(Op::kAllGather, "model.layers.12.self_attn.q_proj forward");
  CHECK(concerns(fault, call, 1));
  CHECK_FALSE(concerns(fault, call_of(Op::kAllGather, "model.layers.0.k_proj forward"), 1));
  fault.op = "all_reduce";
  CHECK_FALSE(concerns(fault, call, 1));
  fault.op = "all_gather";
  fault.axis = "dp";
  CHECK_FALSE(concerns(fault, call, 1));
  fault.axis = "tp";
  fault.step = 2;
  CHECK_FALSE(concerns(fault, call, 1));
  CHECK(concerns(fault, call, 2));
}

TEST_CASE("a * stands for any characters, in order", "[faults]") {
  CHECK(occurs_in("anything", ""));
  CHECK(occurs_in("a.b.c", "a*c"));
  CHECK(occurs_in("a.b.c", "*b*"));
  CHECK_FALSE(occurs_in("a.b.c", "c*a"));
  CHECK_FALSE(occurs_in("ab", "b*b"));
}

TEST_CASE("a contribution can be spoilt only where there is one", "[faults]") {
  Call broadcast = call_of(Op::kBroadcast, "x");
  broadcast.root = 1;
  broadcast.group_rank = 0;
  const FaultSpec drop{.kind = FaultKind::kDrop, .rank = 0, .label = ""},
      delay{.kind = FaultKind::kDelay, .rank = 0, .label = ""};
  CHECK_FALSE(concerns(drop, broadcast, 0));
  CHECK(concerns(delay, broadcast, 0));
  broadcast.group_rank = 1;
  CHECK(concerns(drop, broadcast, 0));
  CHECK_FALSE(concerns(drop, call_of(Op::kRecv, "x"), 0));
  const FaultSpec duplicate{.kind = FaultKind::kDuplicate, .rank = 0, .label = ""};
  CHECK(concerns(duplicate, call_of(Op::kAllReduce, "x"), 0));
  CHECK_FALSE(concerns(duplicate, call_of(Op::kAllGather, "x"), 0));
  Call max = call_of(Op::kAllReduce, "x");
  max.reduce = ReduceOp::kMax;
  CHECK_FALSE(concerns(duplicate, max, 0));
  FaultSpec output{.kind = FaultKind::kCorrupt, .rank = 0, .label = ""};
  output.side = FaultSide::kOutput;
  CHECK_FALSE(concerns(output, call_of(Op::kSend, "x"), 0));
}

TEST_CASE("one bit flips in one element, wherever it lies", "[faults]") {
  const auto flip = [](const std::vector<at::Tensor>& tensors, int64_t element, int64_t bit) {
    FaultSpec fault{.kind = FaultKind::kCorrupt, .rank = 0, .label = ""};
    fault.element = element;
    fault.bit = bit;
    return spoil(fault, tensors, {});
  };
  const at::Tensor whole = at::arange(1, 13, at::kDouble).view({3, 4});
  const at::Tensor first = whole.clone(), second = whole.clone().t();  // not contiguous
  CHECK(flip({first, second}, 12 + 4, 63) == "input bit 63 of element 16: 6 became -6");
  CHECK(at::equal(first, whole));
  CHECK(second[1][1].item<double>() == -6);
  at::Tensor expected = whole.t().clone();
  expected[1][1] = -6;
  CHECK(at::equal(second, expected));
  flip({first}, -1, -1);  // of the largest element, the lowest bit of its exponent
  CHECK(first[2][3].item<double>() == 24);
  const at::Tensor half = at::ones({2}, at::kBFloat16);
  flip({half}, 1, 15);
  CHECK(half[1].item<float>() == -1);
  CHECK_THROWS_AS(flip({half}, 2, 0), Error);
  CHECK_THROWS_AS(flip({half}, 0, 16), Error);
  const FaultSpec stale{.kind = FaultKind::kStale, .rank = 0, .label = ""};
  CHECK_THROWS_AS(spoil(stale, {half}, {first}), Error);
}

// Results of two ranks after `calls` sums of rank + 1 + 10 * call, with faults on rank 1.
struct TwoRanks {
  explicit TwoRanks(std::vector<FaultSpec> faults, int64_t calls = 3) : results(2) {
    EmulatedWorld world(2);
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        FaultInjection injection(faults, rank, {});
        const auto backend = intercepted(world.factory(rank), {[&](CallInProgress& call) {
                                           return injection.before_backend_call(call);
                                         }})("tp", {0, 1});
        struct Listener final : CallListener {
          explicit Listener(FaultInjection& given) : injection(given) {}
          void before_call(const Call& call) override { injection.before_call(call); }
          FaultInjection& injection;
        } listener(injection);
        Communicator tp("tp", {0, 1}, rank, backend, &listener);
        for (int64_t call = 0; call < calls; ++call) {
          const at::Tensor mine = at::full({2}, rank + 1 + 10.0 * call, at::kDouble);
          const at::Tensor before = mine.clone();
          const std::string label = "call " + std::to_string(call);
          const at::Tensor sum = tp.all_reduce(mine, ReduceOp::kSum, label);
          const at::Tensor all = tp.all_gather_async(mine, 0, label).wait();
          results[static_cast<size_t>(rank)].push_back(at::cat({sum, all}));
          if (!at::equal(mine, before)) inputs_kept = false;
        }
        if (rank == 1) notes = injection.notes();
        world.rank_ended(rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // The sum, then both parts of the gathered tensor.
  std::vector<double> values(size_t rank, size_t call) const {
    const at::Tensor all = results[rank][call];
    return {all[0].item<double>(), all[2].item<double>(), all[4].item<double>()};
  }
  std::vector<std::vector<at::Tensor>> results;
  std::vector<FaultNote> notes;
  std::atomic<bool> inputs_kept = true;
};

using Values = std::vector<double>;

TEST_CASE("drop, duplicate and stale change what one rank sends, and nothing else", "[faults]") {
  FaultSpec fault{.kind = FaultKind::kDrop, .rank = 1, .label = "call 1"};
  const TwoRanks dropped({fault});
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(dropped.values(rank, 0) == Values{3, 1, 2});
    CHECK(dropped.values(rank, 1) == Values{11, 11, 12});  // the first matching call: the sum
    CHECK(dropped.values(rank, 2) == Values{43, 21, 22});
  }
  CHECK(dropped.inputs_kept);
  REQUIRE(dropped.notes.size() == 1);
  CHECK(dropped.notes[0].fired);
  CHECK(dropped.notes[0].calls == 6);
  CHECK(dropped.notes[0].matches == 2);
  CHECK_THAT(dropped.notes[0].call, Catch::Contains("all_reduce(sum) tp[0,1]"));

  fault.kind = FaultKind::kDuplicate;
  const TwoRanks doubled({fault});
  CHECK(doubled.values(0, 1) == Values{35, 11, 12});
  CHECK(doubled.values(1, 1) == Values{35, 11, 12});

  const FaultSpec stale{
      .kind = FaultKind::kStale, .rank = 1, .label = "", .at_call = 2, .op = "all_gather"};
  const TwoRanks outdated({stale});
  CHECK(outdated.values(0, 2) == Values{43, 21, 12});
  CHECK(outdated.values(1, 2) == Values{43, 21, 12});
  CHECK(outdated.inputs_kept);
}

TEST_CASE("an output is spoilt on one rank only", "[faults]") {
  FaultSpec fault{
      .kind = FaultKind::kCorrupt, .rank = 1, .label = "", .at_call = 1, .op = "all_gather"};
  fault.side = FaultSide::kOutput;
  fault.bit = 63;
  fault.element = 2;
  const TwoRanks spoilt({fault});
  CHECK(spoilt.values(0, 1) == Values{23, 11, 12});
  CHECK(spoilt.values(1, 1) == Values{23, 11, -12});
  CHECK(spoilt.notes[0].effect == "output bit 63 of element 2: 12 became -12");
}

TEST_CASE("a fault of a link acts before the call, or says why it cannot", "[faults]") {
  const std::vector<FaultSpec> faults = {
      {.kind = FaultKind::kCut, .rank = 1, .label = "", .at_call = 1}};
  const Call call = call_of(Op::kAllReduce, "loss");
  std::vector<std::string> changed;
  const auto change = [&](const FaultSpec& fault) {
    changed.push_back(name_of(fault.kind));
    return std::string("down");
  };
  SECTION("on a node with a link") {
    FaultInjection injection(faults, 1, {.change_link = change});
    CHECK(injection.before_call(call));
    CHECK(changed.empty());
    CHECK(injection.before_call(call));
    CHECK(changed == std::vector<std::string>{"cut"});
    CHECK(injection.notes().front().fired);
    CHECK(injection.notes().front().effect == "down");
  }
  SECTION("on none") {
    FaultInjection injection(faults, 1, {});
    CHECK(injection.before_call(call));
    CHECK(injection.before_call(call));
    CHECK_FALSE(injection.notes().front().fired);
    CHECK(injection.notes().front().problem == "the rank is on no node with a link of its own");
  }
  SECTION("where the kernel does not let it") {
    FaultInjection injection(
        faults, 1, {.change_link = [](const FaultSpec&) -> std::string {
          throw Error({.kind = ErrorKind::kBadInput, .what = "no tbf", .fix = ""});
        }});
    CHECK(injection.before_call(call));
    CHECK(injection.before_call(call));
    CHECK(injection.notes().front().problem == "no tbf");
  }
}

TEST_CASE("a fault that finds no call, or no such element, says so", "[faults]") {
  FaultSpec far{.kind = FaultKind::kDrop, .rank = 1, .label = "", .at_call = 6};
  FaultSpec element{.kind = FaultKind::kCorrupt, .rank = 1, .label = ""};
  element.element = 2;
  const TwoRanks untouched({far, element});
  CHECK(untouched.values(0, 2) == Values{43, 21, 22});
  REQUIRE(untouched.notes.size() == 2);
  CHECK_FALSE(untouched.notes[0].fired);
  CHECK(untouched.notes[0].matches == 6);
  CHECK_FALSE(untouched.notes[1].fired);
  CHECK_THAT(untouched.notes[1].problem, Catch::Contains("no element 2 in a buffer of 2"));
}

}  // namespace
}  // namespace shardproof::sim
