// Planted faults: the calls at which they act, and the tensors that they change.
#include <ATen/ATen.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "sim/world/calls/call_trace.h"
#include "sim/world/calls/fault_injection.h"
#include "sim/world/calls/spoil.h"
#include "tests/support/configured_world.h"

namespace shardproof::sim::world {
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
  FaultSpec output{.kind = FaultKind::kCorrupt, .rank = 0, .label = ""};
  output.side = FaultSide::kOutput;
  output.element = 0;
  output.bit = 15;
  CHECK(spoil(output, {half}, {}) == "output bit 15 of element 0: 1 became -1");
  CHECK_THROWS_AS(flip({half}, 2, 0), Error);
  CHECK_THROWS_AS(flip({half}, 0, 16), Error);
  const FaultSpec stale{.kind = FaultKind::kStale, .rank = 0, .label = ""};
  CHECK_THROWS_AS(spoil(stale, {half}, {.before = {first}}), Error);
}

TEST_CASE("the element of a fault is one of a token, and padding is said", "[faults]") {
  const at::Tensor tokens = at::tensor({0, 1, 2, 3, -1, -1}, at::kLong).view({2, 3});
  const at::Tensor value = at::arange(1, 13, at::kDouble).view({2, 3, 2});
  FaultSpec fault{.kind = FaultKind::kCorrupt, .rank = 0, .label = ""};
  fault.bit = 63;
  const auto flip = [&](int64_t element) {
    fault.element = element;
    const at::Tensor copy = value.clone();
    return spoil(fault, {copy}, {.token_map = tokens});
  };
  CHECK(flip(-1) == "input bit 63 of element 7: 8 became -8");
  CHECK(flip(9) == "input bit 63 of element 9: 10 became -10; element [1, 1, 1] is padding");
  CHECK(flip(7) == "input bit 63 of element 7: 8 became -8");
  // A buffer of another shape has no padding that is known.
  const at::Tensor flat = value.flatten().clone();
  fault.element = -1;
  CHECK(spoil(fault, {flat}, {.token_map = tokens}) == "input bit 63 of element 11: 12 became -12");
}

// scenarios/faults/values.yaml has what the other kinds change.
TEST_CASE("a fault changes what one rank sends in one call, and not the rank's own tensor",
          "[faults]") {
  const FaultSpec stale{
      .kind = FaultKind::kStale, .rank = 1, .label = "", .at_call = 2, .op = "all_gather"};
  const FaultSpec drop{.kind = FaultKind::kDrop, .rank = 1, .label = "call 1"};
  std::vector<std::vector<double>> gathered(2);
  std::vector<FaultNote> notes;
  std::atomic<bool> inputs_kept = true;
  tests::run_configured({}, Mesh({{"tp", 2}}), [&](tests::ConfiguredRank& rank) {
    FaultInjection injection({stale, drop}, rank.rank, {});
    CallTrace listener([&](const Call& call) { injection.before_call(call); });
    const auto factory = intercepted(
        rank.backend, {[&](CallInProgress& call) { return injection.before_backend_call(call); }});
    Communicator tp("tp", {0, 1}, rank.rank, factory("tp", {0, 1}), &listener);
    for (int64_t call = 0; call < 3; ++call) {
      const double value = static_cast<double>(rank.rank + 1 + 10 * call);
      const at::Tensor mine = at::full({1}, value, at::kDouble);
      const std::string label = "call " + std::to_string(call);
      const at::Tensor sum = tp.all_reduce(mine, ReduceOp::kSum, label);
      const at::Tensor all = tp.all_gather_async(mine, 0, label).wait();
      for (const at::Tensor& result : {sum[0], all[0], all[1]}) {
        gathered[static_cast<size_t>(rank.rank)].push_back(result.item<double>());
      }
      if (mine.item<double>() != value) inputs_kept = false;
    }
    if (rank.rank == 1) notes = injection.notes();
  });
  // By call: the sum, then both parts of the gathered tensor. The sum is the first that drop names.
  const std::vector<double> expected = {3, 1, 2, 11, 11, 12, 43, 21, 12};
  CHECK(gathered == std::vector<std::vector<double>>{expected, expected});
  CHECK(inputs_kept);
  REQUIRE(notes.size() == 2);
  CHECK(notes[1].fired);
  CHECK(notes[1].calls == 6);
  CHECK(notes[1].matches == 2);
  CHECK_THAT(notes[1].call, Catch::Contains("all_reduce(sum) tp[0,1]"));
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

}  // namespace
}  // namespace shardproof::sim::world
