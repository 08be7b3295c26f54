// SIGINT, SIGTERM and SIGHUP. The first asks the run to end, from the event loop. A later one ends
// the process at once with status 130, whatever it is doing; its workers follow it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>

namespace shardproof::sim::world {

class Interrupts {
 public:
  // At most one at a time. SIGHUP stays ignored where it was (under nohup).
  Interrupts(boost::asio::io_context& io, std::function<void()> on_first);
  ~Interrupts();  // signals have their default effect again
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  boost::asio::posix::stream_descriptor arrived_;
};

// Whether a signal has come, also one that the event loop has not seen yet.
bool was_interrupted();

}  // namespace shardproof::sim::world
