// The only file that uses ProcessGroupGloo. Gloo's symbols are in libtorch_cpu; only its headers
// come from the system.
#include "comm/gloo_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <future>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/call.h"
#include "base/error.h"
#include "base/shortage.h"
#include "base/utf8.h"

namespace shardproof {
namespace {

using Device = std::shared_ptr<gloo::transport::Device>;
using GlooTensors = std::vector<at::Tensor>;
using GlooWork = c10::intrusive_ptr<c10d::Work>;

// The device's thread handles what arrives. While another thread holds the lock of a connection, it
// asks the system for events again and again: for whole slices of time, if it has taken the core
// from that other thread. A batch thread takes no core from a thread that runs. A thread inherits
// its policy from the one that starts it, so a batch thread makes the device.
Device make_device(const std::string& host) {
  const auto make = [&] {
    const sched_param plain{};
    ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &plain);
    if (host.empty()) return c10d::ProcessGroupGloo::createDefaultDevice();
    return c10d::ProcessGroupGloo::createDeviceForHostname(host);
  };
  try {
    return std::async(std::launch::async, make).get();
  } catch (const std::exception& error) {
    if (!shortage_text(error).empty()) throw;
    const std::string text = error.what();
    throw_failed(fmt::format("Gloo cannot listen on '{}': {}", host, first_line(text)),
                 "name an address of this host", "threw");
  }
}

// Keeps memory that `inner` uses through aliases until wait() has returned. If the work is dropped
// earlier, its future keeps the memory until the call ends.
class LentWork final : public c10d::Work {
 public:
  LentWork(c10::intrusive_ptr<c10d::Work> inner, std::vector<at::Tensor> memory)
      : inner_(std::move(inner)), memory_(std::move(memory)) {}
  ~LentWork() override {
    if (memory_.empty() || inner_->isCompleted()) return;
    inner_->getFuture()->addCallback([memory = std::move(memory_)](c10::ivalue::Future&) {});
  }
  LentWork(const LentWork&) = delete;
  LentWork& operator=(const LentWork&) = delete;

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  void abort() override { inner_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool good = inner_->wait(timeout);
    memory_.clear();
    return good;
  }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  std::vector<at::Tensor> memory_;
};

// The same elements on the CPU; the caller keeps their memory alive.
at::Tensor alias_without_owner(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

GlooWork keeping_until_waited(GlooWork work, GlooTensors memory) {
  return c10::make_intrusive<LentWork>(std::move(work), std::move(memory));
}

// Gloo with lent memory. Its thread drops the tensors of a call some time after the rank has
// continued, and would then free their memory unseen by the rank's own count. So Gloo gets aliases
// without an owner, and the rank keeps the tensors until it has waited. Send and recv run on the
// rank's own thread.
class LentMemoryGloo final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  GlooWork broadcast(GlooTensors& tensors, const c10d::BroadcastOptions& options) override {
    GlooTensors lent = aliases(tensors);
    return keeping_until_waited(ProcessGroupGloo::broadcast(lent, options), tensors);
  }
  GlooWork allreduce(GlooTensors& tensors, const c10d::AllreduceOptions& options) override {
    GlooTensors lent = aliases(tensors);
    return keeping_until_waited(ProcessGroupGloo::allreduce(lent, options), tensors);
  }
  GlooWork _allgather_base(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& options) override {
    at::Tensor to = alias_without_owner(output), from = alias_without_owner(input);
    return keeping_until_waited(ProcessGroupGloo::_allgather_base(to, from, options),
                                {output, input});
  }
  GlooWork alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                         std::vector<int64_t>& input_splits,
                         const c10d::AllToAllOptions& options) override {
    at::Tensor to = alias_without_owner(output), from = alias_without_owner(input);
    return keeping_until_waited(
        ProcessGroupGloo::alltoall_base(to, from, output_splits, input_splits, options),
        {output, input});
  }

 private:
  static GlooTensors aliases(const GlooTensors& tensors) {
    GlooTensors lent;
    for (const at::Tensor& tensor : tensors) lent.push_back(alias_without_owner(tensor));
    return lent;
  }
};

// Makes the groups of one rank, over one device. The count separates the stores of equal groups.
class GlooGroups {
 public:
  GlooGroups(StorePtr store, int64_t rank, GlooSettings settings)
      : store_(std::move(store)), rank_(rank), settings_(std::move(settings)) {}

  c10::intrusive_ptr<c10d::Backend> make(const std::string& name,
                                         const std::vector<int64_t>& ranks) {
    if (!device_) device_ = make_device(settings_.host);
    const std::string key = fmt::format("{}[{}]", name, fmt::join(ranks, ","));
    const int64_t count = made_[key]++;
    const auto store = with_prefix(store_, fmt::format("{}#{}", key, count));
    const auto found = std::find(ranks.begin(), ranks.end(), rank_);
    SHARDPROOF_ASSERT(found != ranks.end(), "a rank joins only its own groups");
    auto options = c10d::ProcessGroupGloo::Options::create(settings_.timeout);
    options->devices.push_back(device_);
    options->threads = 1;
    options->group_name = key;
    try {
      return c10::make_intrusive<LentMemoryGloo>(store, static_cast<int>(found - ranks.begin()),
                                                 static_cast<int>(ranks.size()), options);
    } catch (const std::exception& error) {
      if (!shortage_text(error).empty()) throw;  // no thread or descriptor is left: nobody hangs
      const std::string text = error.what();
      throw_failed(fmt::format("group {} was not made within {} ms: {}", group_name(name, ranks),
                               settings_.timeout.count(), first_line(text)),
                   "see how the other ranks of the group ended: one of them never joined it",
                   "hung");
    }
  }

 private:
  StorePtr store_;
  int64_t rank_;
  GlooSettings settings_;
  Device device_;
  std::map<std::string, int64_t> made_;
};

}  // namespace

BackendFactory gloo_factory(StorePtr store, int64_t rank, GlooSettings settings) {
  auto groups = std::make_shared<GlooGroups>(std::move(store), rank, std::move(settings));
  return [groups](const std::string& name, const std::vector<int64_t>& ranks) {
    return groups->make(name, ranks);
  };
}

}  // namespace shardproof
