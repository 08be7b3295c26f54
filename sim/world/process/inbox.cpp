#include "sim/world/process/inbox.h"

#include <unistd.h>

namespace shardproof::sim::world {

Inbox::Inbox(int socket, std::function<void(const Frame&)> on_urgent, std::optional<FrameSeal> seal,
             std::function<void()> on_close)
    : socket_(socket),
      seal_(seal),
      on_urgent_(std::move(on_urgent)),
      on_close_(std::move(on_close)) {
  std::thread([this] { read(); }).detach();  // ends with the process
}

Frame Inbox::next() {
  const Lock lock(mutex_);
  while (frames_.empty()) arrived_.wait(mutex_);
  Frame frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

void Inbox::read() {
  FrameReader reader(seal_);
  while (reader.read_some(socket_, false) == FrameReader::Status::kOpen) {
    while (std::optional<Frame> frame = reader.next()) {
      if (frame->type != FrameType::kRequest && frame->type != FrameType::kGolden) {
        on_urgent_(*frame);
        continue;
      }
      const Lock lock(mutex_);
      frames_.push_back(std::move(*frame));
      arrived_.notify_one();
    }
  }
  if (on_close_) on_close_();
  ::_exit(0);
}

}  // namespace shardproof::sim::world
