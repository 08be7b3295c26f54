// libshardproof_nccl.so: the only code that needs the CUDA toolkit to build and CUDA to load.
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/nccl_entry.h"

namespace {

c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> options_of(const shardproof::NcclGroup& group) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = group.timeout;
  options->group_name = group.name;
  return options;
}

// NCCL makes the messages between two ranks of a group one after the other, in both directions. Two
// stages of a pipeline, of which one sends forward and then receives, and the other backward, would
// wait for each other as soon as a message does not fit NCCL's buffers. So messages to lower ranks
// have connections of their own.
class NcclOfTwoDirections : public c10d::ProcessGroupNCCL {
 public:
  explicit NcclOfTwoDirections(const shardproof::NcclGroup& group)
      : c10d::ProcessGroupNCCL(group.store, group.rank, group.size, options_of(group)),
        group_(group) {
    setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group.device_index)));
  }

  void startCoalescing() override {
    together_ = true;
    c10d::ProcessGroupNCCL::startCoalescing();
  }

  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    together_ = false;
    return c10d::ProcessGroupNCCL::endCoalescing();
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    if (together_ || to > getRank()) return c10d::ProcessGroupNCCL::send(tensors, to, tag);
    return downwards().send(tensors, to, tag);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    if (together_ || from < getRank()) return c10d::ProcessGroupNCCL::recv(tensors, from, tag);
    return downwards().recv(tensors, from, tag);
  }

 private:
  c10d::ProcessGroupNCCL& downwards() {
    if (!downwards_) {
      const auto store = c10::make_intrusive<c10d::PrefixStore>("downwards", group_.store);
      downwards_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, group_.rank, group_.size,
                                                               options_of(group_));
      downwards_->setBoundDeviceId(*getBoundDeviceId());
    }
    return *downwards_;
  }

  shardproof::NcclGroup group_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> downwards_;
  bool together_ = false;
};

c10::intrusive_ptr<c10d::Backend> make_nccl(const shardproof::NcclGroup& group) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(group.device_index));
  return c10::make_intrusive<NcclOfTwoDirections>(group);
}

}  // namespace

// Found by name with dlsym; both sides are C++ of the same build.
extern "C" __attribute__((visibility("default"))) c10::intrusive_ptr<c10d::Backend>
shardproof_make_nccl(const shardproof::NcclGroup& group) {
  return make_nccl(group);
}
