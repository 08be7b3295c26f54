#include "sim/world/nodes/relay.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <thread>

#include "sim/world/nodes/node_network.h"

namespace shardproof::sim::world {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;
using std::chrono::milliseconds;

constexpr int kLong_ms = 20000;  // for what must come

// Packets of these types without content but a number.
std::string packet(char number, bool is_ipv4 = true) {
  std::string bytes(60, '\0');
  bytes[12] = 0x08;
  bytes[13] = is_ipv4 ? 0x00 : 0x06;
  bytes[20] = number;
  return bytes;
}

// A relay between two sockets that stand for TAP devices, and their other ends.
class Link {
 public:
  explicit Link(double delay_s = 0, double loss = 0) : settings_(1) {
    set(delay_s, loss);
    Relay::Ends ends;
    pair(ends.in_node, node_);
    pair(ends.in_switch, switch_);
    std::vector<Relay::Ends> all;
    all.push_back(std::move(ends));
    relay_.emplace(std::move(all), settings_);
  }
  void set(double delay_s, double loss) {
    settings_.of(0).delay_ns = static_cast<int64_t>(delay_s * 1e9);
    settings_.of(0).loss = loss;
  }
  void send(const std::string& bytes) {
    REQUIRE(::send(node_.get(), bytes.data(), bytes.size(), 0) == std::ssize(bytes));
  }
  void answer(const std::string& bytes) {
    REQUIRE(::send(switch_.get(), bytes.data(), bytes.size(), 0) == std::ssize(bytes));
  }
  static std::string received(const OwnedFd& end, int patience_ms) {
    pollfd one{end.get(), POLLIN, 0};
    if (::poll(&one, 1, patience_ms) <= 0) return "";
    std::string bytes(2000, '\0');
    bytes.resize(static_cast<size_t>(::recv(end.get(), bytes.data(), bytes.size(), 0)));
    return bytes;
  }
  std::string at_switch(int patience_ms = kLong_ms) const { return received(switch_, patience_ms); }
  std::string at_node(int patience_ms = kLong_ms) const { return received(node_, patience_ms); }
  Relay::Counts counts() const { return relay_->counts(0); }
  int64_t waiting() const { return counts().waiting; }

 private:
  static void pair(OwnedFd& ours, OwnedFd& theirs) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ours = OwnedFd(ends[0]);
    theirs = OwnedFd(ends[1]);
  }
  RelaySettings settings_;
  OwnedFd node_, switch_;
  std::optional<Relay> relay_;
};

TEST_CASE("packets go both ways, whole and in order", "[relay]") {
  Link link;
  for (char i = 0; i < 20; ++i) link.send(packet(i));
  for (char i = 0; i < 20; ++i) CHECK(link.at_switch() == packet(i));
  link.answer(packet(99));
  CHECK(link.at_node() == packet(99));
}

TEST_CASE("a packet is late by the delay of its direction, and packets stay in order", "[relay]") {
  Link link(0.05);
  const auto start = Clock::now();
  link.send(packet(1));
  CHECK(link.at_switch() == packet(1));
  CHECK(Clock::now() - start >= milliseconds(50));
  link.answer(packet(2));
  CHECK(link.at_node() == packet(2));
  CHECK(Clock::now() - start >= milliseconds(100));
  while (link.waiting() != 0) std::this_thread::sleep_for(milliseconds(1));
  link.set(0.1, 0);
  link.send(packet(3));
  while (link.waiting() == 0) std::this_thread::sleep_for(milliseconds(1));
  link.set(0, 0);  // healed: what comes later does not overtake
  link.send(packet(4));
  CHECK(link.at_switch() == packet(3));
  CHECK(link.at_switch() == packet(4));
  CHECK(Clock::now() - start >= milliseconds(200));
}

TEST_CASE("a link that loses all loses those of IPv4 alone", "[relay]") {
  Link link(0, 1);
  link.send(packet(1));
  link.send(packet(2, /*is_ipv4=*/false));
  CHECK(link.at_switch() == packet(2, false));
  while (link.counts().taken < 1) std::this_thread::sleep_for(milliseconds(1));
  CHECK(link.counts().lost == 1);
  CHECK(link.counts().ends_in_loss);
  link.set(0, 0);
  link.send(packet(3));
  CHECK(link.at_switch() == packet(3));
  while (link.counts().taken < 2) std::this_thread::sleep_for(milliseconds(1));
  CHECK(link.counts().lost == 1);
  CHECK_FALSE(link.counts().ends_in_loss);
}

TEST_CASE("the share of lost packets is that of the link, the same packets in every run",
          "[relay]") {
  constexpr int kPackets = 20000;
  for (const double loss : {0.0, 0.01, 0.3, 1.0}) {
    for (const bool to_switch : {false, true}) {
      int lost = 0;
      for (uint64_t i = 0; i < kPackets; ++i) lost += is_lost(3, to_switch, i, loss);
      const double deviation = std::sqrt(loss * (1 - loss) * kPackets);
      CHECK(std::fabs(lost - loss * kPackets) <= 5 * deviation);
    }
  }
  int alike = 0;
  for (uint64_t i = 0; i < kPackets; ++i)
    alike += is_lost(3, true, i, 0.5) == is_lost(3, false, i, 0.5);
  CHECK(std::fabs(alike - 0.5 * kPackets) <= 5 * std::sqrt(0.25 * kPackets));
}

TEST_CASE("settings are those of another process that has their pages", "[relay]") {
  RelaySettings settings(3);
  const RelaySettings other(OwnedFd(::dup(settings.fd())));
  CHECK(other.of(2).delay_ns == 0);
  settings.of(2).delay_ns = 7;
  settings.of(1).loss = 0.25;
  CHECK(other.of(2).delay_ns == 7);
  CHECK(other.of(1).loss == 0.25);
  CHECK(other.of(0).loss == 0);
}

// A UDP socket in a network namespace, with the address of its node.
OwnedFd socket_of(const NodeNetwork& network, int64_t node, uint16_t port) {
  OwnedFd made;
  std::thread([&] {  // which alone enters it
    if (::setns(network.place(node).network, CLONE_NEWNET) != 0) return;
    OwnedFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    const timeval patience{kLong_ms / 1000, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      made = std::move(socket);
    }
  })
      .join();
  return made;
}

TEST_CASE("a round trip over a delayed link takes at least twice the delay", "[relay][nodes]") {
  constexpr uint16_t kPort = 7000;
  CaseSpec spec;
  spec.world.backend = Backend::kGloo;
  spec.world.ranks_per_node = 1;
  spec.world.inter_node.latency_us = 1;
  if (!why_no_nodes(spec).empty()) return;  // tests/launchers/nodes_test.py counts that as skipped
  NodeNetwork network(2, {.relayed = true});
  if (network.place(0).user >= 0) return;  // a process of many threads enters no user namespace
  const OwnedFd asks = socket_of(network, 0, kPort), answers = socket_of(network, 1, kPort);
  REQUIRE(asks.valid());
  REQUIRE(answers.valid());
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(kPort);
  ::inet_pton(AF_INET, address_of(1).c_str(), &to.sin_addr);
  const auto round_trip = [&] {
    const auto start = Clock::now();
    char byte = 7;
    REQUIRE(::sendto(asks.get(), &byte, 1, 0, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 1);
    sockaddr_in from{};
    socklen_t size = sizeof(from);
    byte = 0;
    REQUIRE(::recvfrom(answers.get(), &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), &size) == 1);
    REQUIRE(::sendto(answers.get(), &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), size) == 1);
    REQUIRE(::recv(asks.get(), &byte, 1, 0) == 1);
    REQUIRE(byte == 7);
    return duration<double>(Clock::now() - start).count();
  };
  round_trip();  // the nodes learn their addresses
  const RelaySettings settings(OwnedFd(::dup(network.place(0).relay)));
  settings.of(1).delay_ns = 60'000'000;
  CHECK(round_trip() >= 0.12);
  settings.of(0).delay_ns = 40'000'000;
  CHECK(round_trip() >= 0.2);
}

}  // namespace
}  // namespace shardproof::sim::world
