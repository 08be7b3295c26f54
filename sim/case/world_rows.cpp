// Options of the ranks' world, and of the faults planted in it.
#include "sim/case/needs.h"

namespace shardproof::sim {

const OptionRows<WorldSpec>& rows_of(const WorldSpec&) {
  using Spec = WorldSpec;
  using enum KeyType;
  using enum Flag::Of;
  using enum Flag::Replay;
  constexpr auto key = [](auto&&... about) { return sim::key<WorldSpec>(about...); };
  constexpr Range seconds{0.01, kMaxSeconds}, microseconds{0, kMaxSeconds}, rate{0, 1e9};
  constexpr Range factor{0, 1e6}, ranks{1, kMaxRanks};
  const Needs nodes =
      any_of(Needed{"world.nodes", nullptr}, Needed{"world.ranks_per_node", nullptr});
  const Backends emulated{{name_of(Backend::kEmulated)}}, gloo{{name_of(Backend::kGloo)}},
      with_nodes{{name_of(Backend::kEmulated), name_of(Backend::kGloo)}};
  static const OptionRows<WorldSpec> rows = {
      row<&Spec::backend>("", "How the ranks run and communicate",
                          Flag{"--backend", kCheck, kNever}),
      row<&Spec::device>("", "Device of the tensors", Flag{"--device", kCheck, kNever}),
      key("world.size", kInteger, nullptr, "Number of ranks that the mesh must have", ranks),
      key("world.device", kText, nullptr, "The only device for this scenario",
          Choices{known_devices()}, NotDrawn{"it is --device of the command"}),
      row<&Spec::hang_s>("world.hang_s", "Seconds without progress after which a rank is hung",
                         seconds, NotDrawn{"a small one fails on purpose"}),
      row<&Spec::strict>(
          "world.strict",
          "Emulated: poison and watch the buffers of asynchronous calls until wait()", emulated),
      row<&Spec::schedule>(
          "world.schedule",
          "Emulated: seed that draws which rank runs next and when each call takes effect, one "
          "rank at a time; 0: as the threads come",
          Range{0, 1e9}, emulated),
      row<&Spec::digests>(
          "world.digests",
          "Hash and compare the data that each call sent and delivered; always on with faults"),
      key("world.nodes", kInteger, nullptr,
          "Number of nodes, each with equally many consecutive ranks; over Gloo each is a network "
          "namespace with a link to a switch; default: 1, and over Gloo none",
          ranks, with_nodes),
      row<&Spec::ranks_per_node>("world.ranks_per_node",
                                 "Ranks of each node, instead of world.nodes", ranks,
                                 Default::kFollows, with_nodes),
      member<&Spec::in_node>(),
      member<&Spec::inter_node>(),
      row<&Spec::in_node, &LinkSpec::latency_us>(
          "world.links.in_node.latency_us", "Virtual clock: latency of a message within a node",
          microseconds, emulated),
      row<&Spec::in_node, &LinkSpec::gb_per_s>(
          "world.links.in_node.gb_per_s",
          "Rate of each rank within its node, in one direction; 0: bytes take no time", rate,
          emulated),
      row<&Spec::inter_node, &LinkSpec::latency_us>(
          "world.links.inter_node.latency_us",
          "Latency of a message between nodes, on the virtual clock or over Gloo", microseconds,
          nodes, with_nodes),
      row<&Spec::inter_node, &LinkSpec::gb_per_s>(
          "world.links.inter_node.gb_per_s",
          "Rate of each rank between nodes, in one direction; 0: bytes take no time; over Gloo its "
          "node's link has the rate of all its ranks",
          rate, nodes, with_nodes),
      row<&Spec::inter_node, &LinkSpec::per_node>(
          "world.links.inter_node.per_node",
          "true: gb_per_s is the rate of each node, which its ranks share", nodes, with_nodes),
      row<&Spec::inter_node, &LinkSpec::loss>(
          "world.links.inter_node.loss",
          "Over Gloo: share of the packets that each node's link loses, in each direction",
          Range{0, 0.5}, nodes, gloo, NotDrawn{"a link that loses much needs a longer hang_s"}),
      row<&Spec::compute>("world.compute",
                          "Virtual clock: computing takes the thread's CPU time, or fixed costs "
                          "that are equal in every run",
                          emulated),
      row<&Spec::compute_factor>("world.compute_cost.factor",
                                 "measured: virtual seconds per CPU second", factor,
                                 all_of(Needed{"world.compute", "measured"}), emulated),
      row<&Spec::op_us>("world.compute_cost.op_us", "fixed: time of every op", microseconds,
                        all_of(Needed{"world.compute", "fixed"}), emulated),
      row<&Spec::gflop_per_s>(
          "world.compute_cost.gflop_per_s",
          "fixed: rate of matrix products, in addition to op_us; 0: no additional time", rate,
          all_of(Needed{"world.compute", "fixed"}), emulated),
      row<&Spec::stragglers>("world.stragglers",
                             "Ranks that are slower than the others, or faster, each once",
                             emulated),
      row<&Spec::deadline_s>(
          "world.deadline_s",
          "Seconds that a case may compute without a collective call or an op (in all ten "
          "times as long), without those in which other programs had the cores",
          seconds, Flag{"--deadline", kEveryCommand}, NotDrawn{"a small one fails on purpose"}),
  };
  return rows;
}

const OptionRows<LinkSpec>& rows_of(const LinkSpec&) {
  using Spec = LinkSpec;
  static const OptionRows<LinkSpec> rows = {member<&Spec::latency_us>(), member<&Spec::gb_per_s>(),
                                            member<&Spec::per_node>(), member<&Spec::loss>()};
  return rows;
}

const OptionRows<StragglerSpec>& rows_of(const StragglerSpec&) {
  using Spec = StragglerSpec;
  static const OptionRows<StragglerSpec> rows = {
      row<&Spec::rank>("world.stragglers[].rank", "The slower or faster rank", Range{0, kMaxRanks},
                       Default::kFollows),
      row<&Spec::compute>("world.stragglers[].compute",
                          "Factor on the time of the straggler's computing", Range{0, 1e6}),
      row<&Spec::links>("world.stragglers[].links",
                        "Factor on the time of collectives with the straggler: the greatest of "
                        "their members counts, 1 of a rank that is not listed",
                        Range{0, 1e6}),
  };
  return rows;
}

const OptionRows<FaultSpec>& rows_of(const FaultSpec&) {
  using Spec = FaultSpec;
  const auto of_kinds = [](const std::vector<std::string>& kinds) {
    return any_value("faults[].kind", kinds);
  };
  static const OptionRows<FaultSpec> rows = {
      row<&Spec::kind>("faults[].kind", "Kind of the fault", Default::kFollows),
      row<&Spec::rank>("faults[].rank", "Rank of the fault", Range{0, kMaxRanks}),
      row<&Spec::label>("faults[].label",
                        "The fault acts at calls whose label contains this text (silence: at "
                        "tensors, by name); * is a wildcard"),
      row<&Spec::op>("faults[].op", "The fault acts at calls of this op",
                     Choices{known_collectives()}),
      row<&Spec::axis>("faults[].axis",
                       "The fault acts at calls along this axis: tp, dp+cp, world"),
      row<&Spec::step>(
          "faults[].step",
          "The fault acts at calls of this training step (silence: from it on); 0: any",
          Range{0, 100000}),
      row<&Spec::at_call>("faults[].at_call", "The fault acts at the k-th matching call, from 0",
                          Range{0, 1e12}),
      row<&Spec::seconds>("faults[].seconds",
                          "delay: seconds that the call waits; lag: that each packet is late, in "
                          "each direction",
                          Range{0, kMaxSeconds}, of_kinds({"delay", "lag"})),
      row<&Spec::side>("faults[].side", "corrupt: buffer of the rank", of_kinds({"corrupt"})),
      row<&Spec::bit>(
          "faults[].bit",
          "corrupt: number of the bit from the lowest; -1: the lowest bit of the exponent",
          Range{-1, 127}, of_kinds({"corrupt"})),
      row<&Spec::element>(
          "faults[].element",
          "corrupt: row-major index of the element; -1: the element of largest magnitude",
          Range{-1, 1e15}, of_kinds({"corrupt"})),
      row<&Spec::gb_per_s>("faults[].gb_per_s", "slow: rate of the link of the rank's node",
                           Range{1e-6, 1e3}, of_kinds({"slow"})),
      row<&Spec::loss>("faults[].loss",
                       "lose: share of the packets that the link of the rank's node loses",
                       Range{0, 1}, of_kinds({"lose"})),
      row<&Spec::heal_s>(
          "faults[].heal_s",
          "cut, slow, lag, lose: seconds until the link is as before; 0: it stays so",
          Range{0, kMaxSeconds}, of_kinds({"cut", "slow", "lag", "lose"})),
  };
  return rows;
}

}  // namespace shardproof::sim
