// Options of the ranks' world, and of the faults planted in it.
#include "sim/case/names.h"
#include "sim/case/row.h"

namespace shardproof::sim {

const OptionRows<WorldSpec>& rows_of(const WorldSpec&) {
  using Spec = WorldSpec;
  using enum KeyType;
  using enum Flag::Of;
  using enum Flag::Replay;
  constexpr auto key = [](auto&&... about) { return sim::key<WorldSpec>(about...); };
  constexpr Range seconds{0.01, kMaxSeconds}, microseconds{0, kMaxSeconds}, rate{0, 1e9};
  constexpr Range factor{0, 1e6}, ranks{1, kMaxRanks};
  static const OptionRows<WorldSpec> rows = {
      row<&Spec::backend>("", "How the ranks run and talk", Choices{known_backends()},
                          Flag{"--backend", kCheck, kNever}),
      row<&Spec::device>("", "Where tensors lie", Choices{known_devices()},
                         Flag{"--device", kCheck, kNever}),
      key("world.size", kInteger, nullptr, "Ranks that the mesh must come to", ranks),
      key("world.device", kText, nullptr, "The only device that this scenario is for",
          Choices{known_devices()}),
      row<&Spec::hang_s>("world.hang_s", "Seconds without progress after which a rank is hung",
                         seconds),
      row<&Spec::strict>(
          "world.strict",
          "Emulated: buffers of asynchronous calls are poisoned and watched until wait()"),
      row<&Spec::digests>(
          "world.digests",
          "What each call sent and delivered is hashed and compared; always so with faults"),
      key("world.nodes", kInteger, nullptr,
          "Emulated: nodes that the ranks lie on, equally many on each, in order; without it 1",
          ranks),
      row<&Spec::ranks_per_node>("world.ranks_per_node",
                                 "Emulated: ranks of each node; another way to say world.nodes",
                                 ranks, Default::kFollows),
      member<&Spec::in_node>(),
      member<&Spec::inter_node>(),
      row<&Spec::in_node, &LinkSpec::latency_us>(
          "world.links.in_node.latency_us",
          "Virtual clock: what a message within a node takes besides its bytes", microseconds),
      row<&Spec::in_node, &LinkSpec::gb_per_s>(
          "world.links.in_node.gb_per_s",
          "Rate of each rank within its node, in one direction; 0: bytes take no time", rate),
      row<&Spec::inter_node, &LinkSpec::latency_us>(
          "world.links.inter_node.latency_us",
          "Virtual clock: what a message between nodes takes besides its bytes", microseconds),
      row<&Spec::inter_node, &LinkSpec::gb_per_s>(
          "world.links.inter_node.gb_per_s",
          "Rate of each rank between nodes, in one direction; 0: bytes take no time", rate),
      row<&Spec::inter_node, &LinkSpec::per_node>(
          "world.links.inter_node.per_node",
          "true: gb_per_s is the rate of each node, which its ranks share"),
      row<&Spec::compute>("world.compute",
                          "Virtual clock: computing takes the thread's CPU time, or fixed "
                          "costs, equal in every run",
                          Choices{{"measured", "fixed"}}),
      row<&Spec::compute_factor>("world.compute_cost.factor",
                                 "measured: virtual seconds per CPU second", factor),
      row<&Spec::op_us>("world.compute_cost.op_us", "fixed: what every op costs", microseconds),
      row<&Spec::gflop_per_s>(
          "world.compute_cost.gflop_per_s",
          "fixed: matrix products, on top of op_us; 0: they cost no more than any op", rate),
      row<&Spec::stragglers>("world.stragglers", "Ranks that are slower than the others"),
      row<&Spec::deadline_s>("world.deadline_s", "Seconds that the whole case may take", seconds,
                             Flag{"--deadline", kEveryCommand}),
  };
  return rows;
}

const OptionRows<LinkSpec>& rows_of(const LinkSpec&) {
  using Spec = LinkSpec;
  static const OptionRows<LinkSpec> rows = {member<&Spec::latency_us>(), member<&Spec::gb_per_s>(),
                                            member<&Spec::per_node>()};
  return rows;
}

const OptionRows<StragglerSpec>& rows_of(const StragglerSpec&) {
  using Spec = StragglerSpec;
  static const OptionRows<StragglerSpec> rows = {
      row<&Spec::rank>("world.stragglers[].rank", "Rank that is slower", Range{0, kMaxRanks},
                       Default::kFollows),
      row<&Spec::compute>("world.stragglers[].compute",
                          "The straggler's computing takes so many times as long", Range{0, 1e6}),
      row<&Spec::links>("world.stragglers[].links",
                        "Every collective of the straggler takes so many times as long",
                        Range{0, 1e6}),
  };
  return rows;
}

const OptionRows<FaultSpec>& rows_of(const FaultSpec&) {
  using Spec = FaultSpec;
  static const OptionRows<FaultSpec> rows = {
      row<&Spec::kind>("faults[].kind", "What happens to the rank",
                       Choices{{"kill", "hang", "throw", "skip", "delay", "drop", "duplicate",
                                "repeat", "corrupt", "stale"}},
                       Default::kFollows),
      row<&Spec::rank>("faults[].rank", "Rank that the fault happens to", Range{0, kMaxRanks}),
      row<&Spec::label>("faults[].label",
                        "At calls whose label contains this text; * stands for any"),
      row<&Spec::op>("faults[].op", "At calls of this op", Choices{known_collectives()}),
      row<&Spec::axis>("faults[].axis", "At calls along this axis: tp, dp+cp, world"),
      row<&Spec::step>("faults[].step", "At calls of this training step; 0: any", Range{0, 100000}),
      row<&Spec::at_call>("faults[].at_call", "At the k-th such call, from 0", Range{0, 1e12}),
      row<&Spec::seconds>("faults[].seconds", "delay: how long the call waits",
                          Range{0, kMaxSeconds}),
      row<&Spec::side>("faults[].side", "corrupt: which buffer of the rank",
                       Choices{{"input", "output"}}),
      row<&Spec::bit>("faults[].bit",
                      "corrupt: from the lowest; -1: the lowest bit of the exponent",
                      Range{-1, 127}),
      row<&Spec::element>("faults[].element", "corrupt: row-major; -1: the largest",
                          Range{-1, 1e15}),
  };
  return rows;
}

}  // namespace shardproof::sim
