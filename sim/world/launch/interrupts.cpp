#include "sim/world/launch/interrupts.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

#include "base/shortage.h"

namespace shardproof::sim::world {
namespace {

constexpr int kInterruptedStatus = 130;
// A second signal within this time belongs to the first: `timeout` and terminals that close send
// theirs twice.
constexpr int64_t kOneSignal_ms = 200;
constexpr int kInterruptSignals[] = {SIGINT, SIGTERM, SIGHUP};

// What the handler reaches.
std::atomic<int> interrupt_event = -1;
std::atomic<int64_t> first_at_ms = 0;  // 0: none came yet
static_assert(std::atomic<int64_t>::is_always_lock_free);

bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

int new_event() {
  const int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) throw_shortage("no descriptor for signals could be made", errno);
  return event;
}

void on_signal(int) {
  const int error = errno;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ms = int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000 + 1;
  int64_t first = 0;
  if (first_at_ms.compare_exchange_strong(first, now_ms)) {
    const uint64_t one = 1;
    if (::write(interrupt_event.load(), &one, sizeof(one)) < 0) ::_exit(kInterruptedStatus);
  } else if (now_ms - first > kOneSignal_ms) {
    ::_exit(kInterruptedStatus);
  }
  errno = error;
}

}  // namespace

Interrupts::Interrupts(boost::asio::io_context& io, std::function<void()> on_first)
    : arrived_(io, new_event()) {
  interrupt_event.store(arrived_.native_handle());
  first_at_ms.store(0);
  arrived_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [on_first = std::move(on_first)](const boost::system::error_code& error) {
                        if (!error) on_first();
                      });
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : kInterruptSignals) {
    if (signal != SIGHUP || !is_ignored(signal)) ::sigaction(signal, &action, nullptr);
  }
}

bool was_interrupted() { return first_at_ms.load() != 0; }

Interrupts::~Interrupts() {
  for (const int signal : kInterruptSignals) {
    if (!is_ignored(signal)) std::signal(signal, SIG_DFL);
  }
}

}  // namespace shardproof::sim::world
