#include "sim/world/external/rank_listener.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <ranges>
#include <utility>

namespace shardproof::sim::world {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// So many callers may be without a proof; one more, and the first of them is refused.
constexpr size_t kMostCallers = 128;
constexpr size_t kMostHostsNamed = 8;
constexpr milliseconds kLastWait{1000};

std::string host_of(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "an unknown address";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), nullptr, 0,
                NI_NUMERICHOST);
  return host;
}

// Into an empty buffer of the system, so it does not wait.
bool send_all(int socket, const std::string& bytes) {
  return ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

RankListener::RankListener(ListeningSocket listening, std::string secret, int64_t world_size,
                           milliseconds patience)
    : listening_(std::move(listening)),
      secret_(std::move(secret)),
      world_size_(world_size),
      patience_(patience) {}

std::vector<RankListener::Rank> RankListener::take(milliseconds limit) {
  serve(limit);
  return std::exchange(proved_, {});
}

std::string RankListener::refusals() {
  const auto until = steady_clock::now() + kLastWait;
  do {
    serve(milliseconds(20));
  } while (!callers_.empty() && steady_clock::now() < until);
  auto hosts = refused_;
  for (const Caller& silent : callers_) ++hosts[silent.host];
  std::string others =
      fmt::format("{}", fmt::join(others_ | std::views::take(kMostHostsNamed), "; "));
  if (others_.size() > kMostHostsNamed) {
    others += fmt::format("; and {} more", others_.size() - kMostHostsNamed);
  }
  if (hosts.empty()) return others;
  int64_t count = 0;
  std::vector<std::string> named;
  for (const auto& [host, times] : hosts) {
    count += times;
    if (named.size() < kMostHostsNamed) named.push_back(fmt::format("{} ({})", host, times));
  }
  if (hosts.size() == 1) named = {hosts.begin()->first};
  if (hosts.size() > named.size()) {
    named.push_back(fmt::format("{} other addresses", hosts.size() - named.size()));
  }
  return fmt::format("{}{}{} connection{} without the secret {} refused, from {}", others,
                     others.empty() ? "" : "; ", count, count == 1 ? "" : "s",
                     count == 1 ? "was" : "were", fmt::join(named, ", "));
}

void RankListener::serve(milliseconds limit) {
  std::vector<pollfd> wait{{listening_.socket.get(), POLLIN, 0}};
  for (const Caller& caller : callers_) wait.push_back({caller.socket.get(), POLLIN, 0});
  ::poll(wait.data(), wait.size(), static_cast<int>(limit.count()));
  callers_.remove_if([this](Caller& caller) { return settled(caller); });
  if ((wait[0].revents & POLLIN) != 0) admit();
}

void RankListener::admit() {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  OwnedFd socket(::accept4(listening_.socket.get(), reinterpret_cast<sockaddr*>(&address), &size,
                           SOCK_CLOEXEC));
  if (!socket.valid()) return;
  if (callers_.size() == kMostCallers) {
    ++refused_[callers_.front().host];
    callers_.pop_front();
  }
  ControlHandshake handshake(secret_, world_size_);
  send_all(socket.get(), handshake.greeting());
  callers_.push_back({std::move(socket), host_of(address, size), handshake, steady_clock::now()});
}

bool RankListener::settled(Caller& caller) {
  // One byte more than an answer has: a rank says nothing else before the reply.
  char bytes[kAnswerBytes + 1];
  const ssize_t got =
      ::recv(caller.socket.get(), bytes, sizeof(bytes) - caller.answer.size(), MSG_DONTWAIT);
  if (got > 0) caller.answer.append(bytes, static_cast<size_t>(got));
  const bool may_go_on = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  if (may_go_on && caller.answer.size() < kAnswerBytes &&
      steady_clock::now() - caller.called < patience_) {
    return false;
  }
  auto proved = caller.handshake.check(caller.answer);
  if (proved && proved->reply.empty()) {
    others_.insert(fmt::format("rank {} of {} came with WORLD_SIZE={} where rank 0 has {}",
                               proved->rank, caller.host, proved->world_size, world_size_));
  } else if (proved && send_all(caller.socket.get(), proved->reply)) {
    proved_.push_back({std::move(caller.socket), proved->rank, proved->seals});
  } else {
    ++refused_[caller.host];
  }
  return true;
}

}  // namespace shardproof::sim::world
