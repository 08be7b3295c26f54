#include "sim/uses/validate/environment.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "base/physical_memory.h"
#include "base/quantile.h"

namespace shardproof::sim::validate {
namespace {

const std::set<std::string> kOwnFacts = {"host", "boot", "addresses"};

std::string value_of(const Facts& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? "" : found->second;
}

// The clock of a host: that of its rank whose time is known best.
const ClockOffset& clock_of_host(const std::vector<ClockOffset>& by_rank,
                                 const std::vector<int64_t>& ranks) {
  const auto uncertainty = [&](int64_t rank) { return by_rank[rank].uncertainty; };
  return by_rank[*std::ranges::min_element(ranks, {}, uncertainty)];
}

}  // namespace

std::vector<OddFact> odd_facts(const std::vector<Facts>& facts) {
  std::set<std::string> names;
  for (const Facts& host : facts) {
    for (const auto& [name, value] : host) names.insert(name);
  }
  std::vector<OddFact> odd;
  for (const std::string& name : names) {
    if (kOwnFacts.count(name) > 0) continue;
    std::map<std::string, size_t> counts;
    for (const Facts& host : facts) ++counts[value_of(host, name)];
    const auto usual = std::ranges::max_element(
        counts, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (2 * usual->second <= facts.size()) continue;  // no value is the usual one
    for (size_t host = 0; host < facts.size(); ++host) {
      const std::string value = value_of(facts[host], name);
      if (value == usual->first) continue;
      odd.push_back({static_cast<int64_t>(host), name, value, usual->first});
    }
  }
  return odd;
}

std::vector<ValidationFinding> clocks_off(const std::vector<ClockOffset>& by_rank,
                                          const Hosts& hosts, double limit_s) {
  std::vector<ClockOffset> clocks;  // of each host
  std::vector<double> offsets;
  for (int64_t host = 0; host < hosts.count(); ++host) {
    clocks.push_back(clock_of_host(by_rank, hosts.ranks_of(host)));
    offsets.push_back(clocks.back().seconds);
  }
  std::vector<ValidationFinding> findings;
  const auto add = [&](std::vector<int64_t> of, const std::string& what, double uncertainty) {
    ValidationFinding finding{.stage = Stage::kEnvironment, .kind = FindingKind::kClock};
    for (const int64_t host : of) {
      finding.hosts.push_back(hosts.name(host));
      const std::vector<int64_t> ranks = hosts.ranks_of(host);
      finding.ranks.insert(finding.ranks.end(), ranks.begin(), ranks.end());
    }
    finding.message =
        fmt::format("{} (uncertainty {:.3f} s, limit {:g} s)", what, uncertainty, limit_s);
    findings.push_back(std::move(finding));
  };
  if (hosts.count() == 2) {  // neither is the usual one
    const double apart = std::abs(offsets[0] - offsets[1]);
    const double uncertainty = clocks[0].uncertainty + clocks[1].uncertainty;
    if (apart - uncertainty > limit_s) {
      add({0, 1},
          fmt::format("the clocks of {} and {} are {:.3f} s apart", hosts.called(0),
                      hosts.called(1), apart),
          uncertainty);
    }
    return findings;
  }
  const double usual = median(offsets);
  for (int64_t host = 0; host < hosts.count(); ++host) {
    const double off = offsets[host] - usual, uncertainty = clocks[host].uncertainty;
    if (!(std::abs(off) - uncertainty > limit_s)) continue;
    add({host},
        fmt::format("the clock of {} is {:.3f} s {} the median of the hosts", hosts.called(host),
                    std::abs(off), off > 0 ? "ahead of" : "behind"),
        uncertainty);
  }
  return findings;
}

nlohmann::json environment_json(const std::vector<Facts>& facts, const Hosts& hosts,
                                const std::vector<ClockOffset>& by_rank) {
  nlohmann::json list = nlohmann::json::array();
  for (int64_t host = 0; host < hosts.count(); ++host) {
    const std::vector<int64_t> ranks = hosts.ranks_of(host);
    nlohmann::json one = {{"name", hosts.name(host)},
                          {"ranks", ranks},
                          {"facts", facts[static_cast<size_t>(host)]},
                          {"odd", nlohmann::json::array()}};
    if (!by_rank.empty()) {
      const ClockOffset& clock = clock_of_host(by_rank, ranks);
      one["clock_offset_s"] = clock.seconds;
      one["clock_uncertainty_s"] = clock.uncertainty;
    }
    list.push_back(std::move(one));
  }
  for (const OddFact& odd : odd_facts(facts)) {
    list[static_cast<size_t>(odd.host)]["odd"].push_back(
        {{"fact", odd.fact}, {"value", odd.value}, {"usual", odd.usual}});
  }
  return {{"hosts", list}};
}

// Reads what this machine is from the kernel's files, and from nvidia-smi where there is one.

namespace {

// Those that decide which kernels of LibTorch and oneDNN run.
const std::set<std::string> kInstructionSets = {
    "sse4_2",   "avx",      "avx2",        "fma",         "f16c",        "avx512f",
    "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
    "amx_bf16", "amx_int8", "asimd",       "sve",         "bf16"};

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string after_colon(const std::string& line) {
  const size_t colon = line.find(':');
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  return colon == std::string::npos || begin == std::string::npos ? "" : line.substr(begin);
}

void add_processor(Facts& facts) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name") && facts["cpu"].empty()) facts["cpu"] = after_colon(line);
    if (line.starts_with("microcode")) facts["microcode"] = after_colon(line);
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(after_colon(line));
    std::set<std::string> known;
    for (std::string word; words >> word;) {
      if (kInstructionSets.count(word) > 0) known.insert(word);
    }
    facts["instruction_sets"] = fmt::format("{}", fmt::join(known, " "));
    break;
  }
  facts["cores"] = std::to_string(std::thread::hardware_concurrency());
  facts["memory_gib"] = fmt::format("{:.0f}", std::round(physical_memory_gib()));
}

void add_limit(Facts& facts, const std::string& name, decltype(RLIMIT_NOFILE) which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return;
  facts["limit_" + name] =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

void add_interfaces(Facts& facts) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::set<std::string> interfaces, addresses;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const bool loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 || loopback) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string name = one->ifa_name, folder = "/sys/class/net/" + name + "/";
    const std::string speed = first_line_of(folder + "speed");
    interfaces.insert(fmt::format("{} mtu {}{}", name, first_line_of(folder + "mtu"),
                                  speed.empty() || speed[0] == '-' ? "" : " " + speed + " Mb/s"));
    std::array<char, NI_MAXHOST> text = {};
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(one->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
        0) {
      addresses.insert(text.data());
    }
  }
  facts["interfaces"] = fmt::format("{}", fmt::join(interfaces, ", "));
  facts["addresses"] = fmt::format("{}", fmt::join(addresses, ", "));
}

bool is_on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// The lines that a command prints; it ends with this process's patience of 20 s.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      ::popen(("timeout 20 " + command + " 2>/dev/null").c_str(), "r"), &::pclose);
  if (!pipe) return "";
  std::string text;
  std::array<char, 512> part = {};
  while (std::fgets(part.data(), part.size(), pipe.get()) != nullptr) text += part.data();
  return text;
}

void add_gpus(Facts& facts) {
  if (!is_on_path("nvidia-smi")) return;
  const std::vector<std::string> names = {"name",
                                          "driver_version",
                                          "memory.total",
                                          "power.limit",
                                          "clocks.max.sm",
                                          "clocks.max.memory",
                                          "ecc.mode.current",
                                          "ecc.errors.uncorrected.volatile.total"};
  const std::string text = output_of(
      fmt::format("nvidia-smi --query-gpu={} --format=csv,noheader", fmt::join(names, ",")));
  std::istringstream lines(text);
  int64_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    facts[fmt::format("gpu{}", count)] = line;  // in the order of `names`
  }
  facts["gpus"] = std::to_string(count);
  if (void* nccl = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL)) {
    using GetVersion = int(int*);
    auto* get = reinterpret_cast<GetVersion*>(::dlsym(nccl, "ncclGetVersion"));
    int version = 0;
    if (get != nullptr && get(&version) == 0) {
      facts["nccl"] = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    }
  }
}

}  // namespace

Facts machine_facts() {
  Facts facts;
  struct utsname name {};
  ::uname(&name);
  facts["host"] = name.nodename;
  facts["boot"] = first_line_of("/proc/sys/kernel/random/boot_id");
  facts["kernel"] = fmt::format("{} {}", name.sysname, name.release);
  facts["architecture"] = name.machine;
  facts["libtorch"] = TORCH_VERSION;
  add_processor(facts);
  add_interfaces(facts);
  add_limit(facts, "open_files", RLIMIT_NOFILE);
  add_limit(facts, "locked_memory", RLIMIT_MEMLOCK);
  add_limit(facts, "processes", RLIMIT_NPROC);
  add_limit(facts, "stack", RLIMIT_STACK);
  add_limit(facts, "address_space", RLIMIT_AS);
  add_gpus(facts);
  return facts;
}

}  // namespace shardproof::sim::validate
