#include "sim/world/nodes/links.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/gen_stats.h>
#include <linux/if_link.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/error.h"

namespace shardproof::sim::world {
namespace {

constexpr uint16_t kChange = NLM_F_ACK, kNew = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
// A limited link may send so many bytes at once, or those of 10 ms, and holds those of 100 ms back.
constexpr double kLeastBurst = 4 * 1024, kBurst_s = 0.01, kQueue_s = 0.1, kLeastQueue = 256 * 1024;

ifinfomsg any_link() {
  ifinfomsg link{};
  link.ifi_family = AF_UNSPEC;
  return link;
}

tcmsg root_of(int index) {
  tcmsg queue{};
  queue.tcm_family = AF_UNSPEC;
  queue.tcm_ifindex = index;
  queue.tcm_parent = TC_H_ROOT;
  queue.tcm_handle = 1U << 16;
  return queue;
}

std::string text_of(std::string_view bytes) {
  return std::string(bytes.substr(0, bytes.find('\0')));
}

template <class Struct>
Struct taken(std::string_view bytes) {
  Struct value{};
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof(value)));
  return value;
}

}  // namespace

void Links::require(const NetlinkMessage& message, const std::string& what) {
  const int error = netlink_.ask(message);
  if (error == 0) return;
  throw_bad_input(fmt::format("the kernel did not {}: {}", what, std::strerror(error)),
                  "run as root, where it has veth, bridge and tbf, or take --backend emulated");
}

void Links::add_bridge(const std::string& name) {
  NetlinkMessage message(RTM_NEWLINK, kNew, any_link());
  message.add_text(IFLA_IFNAME, name);
  const size_t info = message.open(IFLA_LINKINFO);
  message.add_text(IFLA_INFO_KIND, "bridge");
  message.close(info);
  require(message, "make a bridge");
}

void Links::add_cable(const std::string& name, const std::string& other_name, int other_network) {
  NetlinkMessage message(RTM_NEWLINK, kNew, any_link());
  message.add_text(IFLA_IFNAME, name);
  const size_t info = message.open(IFLA_LINKINFO);
  message.add_text(IFLA_INFO_KIND, "veth");
  const size_t data = message.open(IFLA_INFO_DATA);
  const ifinfomsg head = any_link();
  const size_t peer = message.open(
      VETH_INFO_PEER, std::string_view(reinterpret_cast<const char*>(&head), sizeof(head)));
  message.add_text(IFLA_IFNAME, other_name);
  message.add_number(IFLA_NET_NS_FD, static_cast<uint32_t>(other_network));
  message.close(peer);
  message.close(data);
  message.close(info);
  require(message, "make a veth pair");
}

int Links::index_of(const std::string& name) {
  NetlinkMessage message(RTM_GETLINK, NLM_F_ACK, any_link());
  message.add_text(IFLA_IFNAME, name);
  const std::vector<std::string> answers = netlink_.dump(message);
  SHARDPROOF_ASSERT(!answers.empty(), "a link of a node is missing");
  return taken<ifinfomsg>(answers.front()).ifi_index;
}

void Links::join(const std::string& name, const std::string& bridge) {
  ifinfomsg link = any_link();
  link.ifi_index = index_of(name);
  NetlinkMessage message(RTM_NEWLINK, kChange, link);
  message.add_number(IFLA_MASTER, static_cast<uint32_t>(index_of(bridge)));
  require(message, "join a link to a bridge");
}

void Links::set_up(const std::string& name, bool up) {
  ifinfomsg link = any_link();
  link.ifi_index = index_of(name);
  link.ifi_flags = up ? IFF_UP : 0;
  link.ifi_change = IFF_UP;
  require(NetlinkMessage(RTM_NEWLINK, kChange, link), up ? "set a link up" : "set a link down");
}

void Links::set_address(const std::string& name, const std::string& address, uint8_t prefix_bits) {
  ifaddrmsg head{};
  head.ifa_family = AF_INET;
  head.ifa_prefixlen = prefix_bits;
  head.ifa_index = static_cast<uint32_t>(index_of(name));
  in_addr number{};
  SHARDPROOF_ASSERT(::inet_pton(AF_INET, address.c_str(), &number) == 1, "no IPv4 address");
  NetlinkMessage message(RTM_NEWADDR, kNew, head);
  message.add_number(IFA_LOCAL, number);
  message.add_number(IFA_ADDRESS, number);
  require(message, "give a link its address");
}

void Links::limit(const std::string& name, double bytes_per_s) {
  const tcmsg root = root_of(index_of(name));
  if (bytes_per_s <= 0) {
    const int error = netlink_.ask(NetlinkMessage(RTM_DELQDISC, kChange, root));
    SHARDPROOF_ASSERT(error == 0 || error == ENOENT || error == EINVAL, "a limit stays");
    return;
  }
  const double burst = std::max(kLeastBurst, bytes_per_s * kBurst_s);
  const auto rate = static_cast<uint64_t>(std::max(bytes_per_s, 1.0));
  tc_tbf_qopt options{};
  options.rate.linklayer = 1;  // ethernet: the kernel wants no table of rates
  options.rate.rate = static_cast<uint32_t>(std::min<uint64_t>(rate, ~0U));
  options.limit =
      static_cast<uint32_t>(std::min(burst + std::max(kLeastQueue, bytes_per_s * kQueue_s), 1e9));
  NetlinkMessage message(RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, root);
  message.add_text(TCA_KIND, "tbf");
  const size_t inside = message.open(TCA_OPTIONS);
  message.add_number(TCA_TBF_PARMS, options);
  message.add_number(TCA_TBF_BURST, static_cast<uint32_t>(std::min(burst, 1e9)));
  if (rate > ~0U) message.add_number(TCA_TBF_RATE64, rate);
  message.close(inside);
  require(message, "limit the rate of a link (tbf)");
}

std::vector<LinkState> Links::states() {
  std::map<int, LinkState> found;
  for (const std::string& answer :
       netlink_.dump(NetlinkMessage(RTM_GETLINK, NLM_F_DUMP, any_link()))) {
    const auto link = taken<ifinfomsg>(answer);
    const NetlinkAttributes about(std::string_view(answer).substr(NLMSG_ALIGN(sizeof(link))));
    const auto counted = taken<rtnl_link_stats64>(about.find(IFLA_STATS64));
    found[link.ifi_index] = {
        .name = text_of(about.find(IFLA_IFNAME)),
        .up = (link.ifi_flags & IFF_UP) != 0 && (link.ifi_flags & IFF_RUNNING) != 0,
        .bytes = counted.rx_bytes + counted.tx_bytes};
  }
  for (const std::string& answer :
       netlink_.dump(NetlinkMessage(RTM_GETQDISC, NLM_F_DUMP, tcmsg{}))) {
    const auto queue = taken<tcmsg>(answer);
    const NetlinkAttributes about(std::string_view(answer).substr(NLMSG_ALIGN(sizeof(queue))));
    const NetlinkAttributes counted(about.find(TCA_STATS2));
    const auto link = found.find(queue.tcm_ifindex);
    if (link == found.end()) continue;
    link->second.waiting_bytes += taken<gnet_stats_queue>(counted.find(TCA_STATS_QUEUE)).backlog;
  }
  std::vector<LinkState> states;
  for (auto& [index, state] : found) states.push_back(std::move(state));
  return states;
}

}  // namespace shardproof::sim::world
