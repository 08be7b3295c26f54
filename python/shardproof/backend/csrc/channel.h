// The side channel of one group: how its members tell each other what they call.
//
// It is a backend of its own (Gloo), so that its messages never meet those of the user's calls.
// Every exchange has the same size whatever the call, so that a disagreement cannot break it.
#pragma once

#include <chrono>
#include <exception>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "call.h"

namespace shardproof {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// An exchange ended without the other's record.
struct Lost : std::exception {
  int peer = -1;           // in group order: whose message did not come
  bool timed_out = false;  // otherwise the connection was closed
  std::string reason;
  const char* what() const noexcept override { return reason.c_str(); }
};

class Channel {
 public:
  Channel(BackendPtr side, std::chrono::milliseconds timeout)
      : side_(std::move(side)),
        timeout_(timeout),
        rank_(side_->getRank()),
        size_(side_->getSize()) {}

  struct Extremes {
    Record low, high;  // with the lowest and the highest digest of all members
  };

  // In log2(size) rounds: after round k each member knows the extremes of its 2^(k+1) predecessors.
  Extremes extremes(const Record& mine) {
    Extremes known{mine, mine};
    const auto start = now();
    std::vector<at::Tensor> sent, received;
    std::vector<WorkPtr> sends, receives;
    for (int step = 1; step < size_; step *= 2) {
      received.push_back(buffer(sizeof(Extremes)));
      receives.push_back(receive(received.back(), (rank_ - step + size_) % size_, kCollective));
    }
    int step = 1;
    for (size_t round = 0; round < receives.size(); ++round, step *= 2) {
      sent.push_back(buffer(sizeof(Extremes)));
      std::memcpy(sent.back().data_ptr(), &known, sizeof(Extremes));
      sends.push_back(send(sent.back(), (rank_ + step) % size_, kCollective));
      await(receives[round], (rank_ - step + size_) % size_, start);
      Extremes theirs;
      std::memcpy(&theirs, received[round].data_ptr(), sizeof(Extremes));
      if (before(theirs.low, known.low)) known.low = theirs.low;
      if (before(known.high, theirs.high)) known.high = theirs.high;
    }
    step = 1;
    for (const WorkPtr& work : sends) {
      await(work, (rank_ + step) % size_, start);
      step *= 2;
    }
    return known;
  }

  // What each member has, in group order; `bytes` are as many on each.
  at::Tensor table(const void* mine, size_t bytes) {
    at::Tensor input = buffer(bytes), output = buffer(bytes * static_cast<size_t>(size_));
    std::memcpy(input.data_ptr(), mine, bytes);
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    await(side_->_allgather_base(output, input, options), -1, now());
    return output;
  }
  std::vector<Record> records(const Record& mine) {
    const at::Tensor bytes = table(&mine, sizeof(Record));
    const auto* first = static_cast<const Record*>(bytes.data_ptr());
    return {first, first + size_};
  }

  // Both ends of a message swap their records. `sends`: of the user's message.
  Record swap(const Record& mine, int peer, int tag, bool sends) {
    const auto start = now();
    at::Tensor theirs = buffer(sizeof(Record));
    const WorkPtr arrival = receive(theirs, peer, slot(tag, !sends));
    at::Tensor own = buffer(sizeof(Record));
    const WorkPtr departure = tell(mine, own, peer, slot(tag, sends));
    await(arrival, peer, start);
    await(departure, peer, start);
    return *static_cast<const Record*>(theirs.data_ptr());
  }
  // The same for a receiver that takes the first message of anyone: the sender's record and rank.
  std::pair<Record, int> swap_with_any(const Record& mine, int tag) {
    const auto start = now();
    at::Tensor theirs = buffer(sizeof(Record));
    Tensors tensors{theirs};
    const WorkPtr arrival = side_->recvAnysource(tensors, slot(tag, true));
    await(arrival, -1, start);
    const int peer = arrival->sourceRank();
    at::Tensor own = buffer(sizeof(Record));
    await(tell(mine, own, peer, slot(tag, false)), peer, start);
    return {*static_cast<const Record*>(theirs.data_ptr()), peer};
  }

  // Ends all exchanges of all members: Gloo closes its connections when one wait times out.
  void hang_up() {
    if (size_ < 2) return;
    try {
      at::Tensor nothing = buffer(1);
      receive(nothing, (rank_ + 1) % size_, kHangUp)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // the time-out that is meant
    }
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr int kCollective = 0, kHangUp = 1;

  static Time now() { return std::chrono::steady_clock::now(); }
  static at::Tensor buffer(size_t bytes) {
    return at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  }
  static bool before(const Record& a, const Record& b) {
    return a.digest != b.digest ? a.digest < b.digest : a.rank < b.rank;
  }
  static int slot(int tag, bool from_sender) { return 2 + 2 * tag + (from_sender ? 1 : 0); }

  template <typename Action>
  auto guarded(int peer, Action action, bool may_time_out = false, Time deadline = {}) {
    try {
      return action();
    } catch (const std::exception& error) {
      Lost lost;
      lost.peer = peer;
      lost.timed_out = may_time_out && now() >= deadline;
      lost.reason = error.what();
      throw lost;
    }
  }
  WorkPtr send(at::Tensor& tensor, int peer, int slot) {
    Tensors tensors{tensor};
    return guarded(peer, [&] { return side_->send(tensors, peer, slot); });
  }
  WorkPtr receive(at::Tensor& tensor, int peer, int slot) {
    Tensors tensors{tensor};
    return guarded(peer, [&] { return side_->recv(tensors, peer, slot); });
  }
  WorkPtr tell(const Record& mine, at::Tensor& bytes, int peer, int slot) {
    std::memcpy(bytes.data_ptr(), &mine, sizeof(Record));
    return send(bytes, peer, slot);
  }

  void await(const WorkPtr& work, int peer, Time start) {
    const auto deadline = start + timeout_;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now());
    const auto wait = std::max(left, std::chrono::milliseconds(1));
    guarded(
        peer, [&] { return work->wait(wait); }, true, deadline - std::chrono::milliseconds(20));
  }

  const BackendPtr side_;
  const std::chrono::milliseconds timeout_;
  const int rank_, size_;
};

}  // namespace shardproof
