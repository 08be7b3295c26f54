// The bytes of messages to the kernel, and nodes that this test makes where it may.
#include "sim/world/nodes/netlink.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "sim/world/nodes/node_network.h"
#include "tests/support/said_by.h"

namespace shardproof::sim::world {
namespace {

constexpr size_t kHeader = 16;  // of a message

TEST_CASE("attributes are found again, those inside of others too", "[nodes]") {
  NetlinkMessage message(1, 2, uint32_t{7});
  message.add_text(3, "port0");  // 6 bytes with the end, padded to 8
  const size_t outer = message.open(4, "head");
  message.add_number(5, uint16_t{9});
  message.close(outer);
  message.add_number(6, uint64_t{10});
  const std::string bytes = message.finished(8);

  uint32_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  CHECK(length == bytes.size());
  const NetlinkAttributes found(std::string_view(bytes).substr(kHeader + sizeof(uint32_t)));
  CHECK(found.find(3) == std::string_view("port0", 6));
  CHECK(found.find(6).size() == sizeof(uint64_t));
  CHECK(found.find(5).empty());
  const std::string_view inside = found.find(4);
  REQUIRE(inside.substr(0, 4) == "head");
  CHECK(NetlinkAttributes(inside.substr(4)).find(5) == std::string_view("\x09\x00", 2));
}

TEST_CASE("attributes that claim more bytes than there are end the search", "[nodes]") {
  CHECK(NetlinkAttributes(std::string_view("\x40\x00\x03\x00xy", 6)).find(3).empty());
  CHECK(NetlinkAttributes(std::string_view("\x00\x00\x03\x00", 4)).find(3).empty());
  CHECK(NetlinkAttributes(std::string_view("\x08\x00", 2)).find(8).empty());
}

TEST_CASE("every node has an address of its own", "[nodes]") {
  CHECK(address_of(0) == "10.77.0.1");
  CHECK(address_of(249) == "10.77.0.250");
  CHECK(address_of(250) == "10.77.1.1");
}

TEST_CASE("the rate of a node's link is that of all its ranks", "[nodes]") {
  WorldSpec world;
  world.ranks_per_node = 4;
  CHECK(world.node_gb_per_s() == 0);
  world.inter_node.gb_per_s = 2;
  CHECK(world.node_gb_per_s() == 8);
  world.inter_node.per_node = true;
  CHECK(world.node_gb_per_s() == 2);
}

TEST_CASE("more nodes than addresses are refused with both numbers", "[nodes]") {
  CHECK_THAT(tests::said_by([] { NodeNetwork(251, {}); }),
             Catch::StartsWith("bad input: 251 nodes over Gloo, at most 250 can be; "));
}

TEST_CASE("links that are up and at rest are no trouble", "[nodes]") {
  CaseSpec spec;
  spec.world.backend = Backend::kGloo;
  spec.world.ranks_per_node = 1;
  if (!why_no_nodes(spec).empty()) return;  // tests/launchers/nodes_test.py counts that as skipped
  NodeNetwork network(3, {.gb_per_s = 0.01});
  for (int look = 0; look < 3; ++look) network.look();
  CHECK(network.troubles().empty());
  CHECK(network.place(0).network != network.place(1).network);
  CHECK(network.place(2).network_of_switch == network.place(0).network_of_switch);
}

}  // namespace
}  // namespace shardproof::sim::world
