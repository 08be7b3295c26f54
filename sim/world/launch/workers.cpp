#include "sim/world/launch/workers.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "base/shortage.h"
#include "sim/world/process/process_clock.h"

namespace shardproof::sim::world {
namespace {

OwnedFd duplicate(int fd) {
  if (fd < 0) return {};
  OwnedFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) throw_shortage("no descriptor is left for another worker", errno);
  return copy;
}

}  // namespace

Workers::Workers(boost::asio::io_context& io, const WorkerFunctions& functions)
    : io_(io),
      zygote_(functions),
      notices_(io, duplicate(zygote_.socket()).release()),
      next_look_(io) {
  wait_for_exits();
  watch_zygote();
}

Workers::~Workers() {
  end_all_if_gone();
  for (auto& [pid, worker] : alive_) {
    if (const auto running = worker.lock()) running->kill();
  }
}

std::shared_ptr<WorkerProcess> Workers::start(const WorkerSetup& setup, const Shared& shared) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw_shortage("no socket is left for another worker", errno);
  }
  OwnedFd our_channel(ends[0]), channel(ends[1]);
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw_shortage("no pipe is left for another worker", errno);
  }
  OwnedFd our_output(ends[0]), output(ends[1]);
  WorkerFds fds{.channel = std::move(channel),
                .output = std::move(output),
                .board = duplicate(shared.board),
                .store = duplicate(shared.store),
                .lines = duplicate(shared.lines),
                .node_network = duplicate(shared.node.network),
                .switch_network = duplicate(shared.node.network_of_switch),
                .node_user = duplicate(shared.node.user),
                .relay = duplicate(shared.node.relay)};
  Zygote::Spawned spawned = zygote_.spawn(setup, std::move(fds));
  auto worker = std::make_shared<WorkerProcess>(io_, std::move(spawned), std::move(our_channel),
                                                std::move(our_output));
  alive_[worker->pid()] = worker;
  if (zygote_.has_exits()) {  // read while waiting for the new worker: no notice follows
    boost::asio::post(io_, [this, living = std::weak_ptr<bool>(living_)] {
      if (!living.expired()) take_exits();
    });
  }
  return worker;
}

void Workers::take_exits() {
  while (const auto exit = zygote_.next_exit()) {
    const auto found = alive_.find(exit->pid);
    if (found == alive_.end()) continue;
    const auto worker = found->second.lock();
    alive_.erase(found);
    if (worker) worker->exited(exit_text(exit->status));
  }
}

void Workers::wait_for_exits() {
  notices_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code& error) {
                        if (error) return;
                        take_exits();
                        end_all_if_gone();
                        if (!zygote_.gone()) wait_for_exits();
                      });
}

void Workers::watch_zygote() {
  next_look_.expires_after(Zygote::kLookPeriod);
  next_look_.async_wait(
      [this, living = std::weak_ptr<bool>(living_)](const boost::system::error_code& error) {
        if (error || living.expired()) return;
        zygote_.look();
        take_exits();
        end_all_if_gone();
        if (!zygote_.gone()) watch_zygote();
      });
}

void Workers::end_all_if_gone() {
  if (!zygote_.gone()) return;
  for (const auto& [pid, worker] : std::exchange(alive_, {})) {
    const auto running = worker.lock();
    if (!running) continue;
    running->kill();
    running->exited("was ended because the process that forks workers " + zygote_.how_gone());
  }
}

}  // namespace shardproof::sim::world
