// libshardproof_nccl.so: the only code that needs the CUDA toolkit to build and CUDA to load.
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/nccl_entry.h"

namespace {

c10::intrusive_ptr<c10d::Backend> make_nccl(const shardproof::NcclGroup& group) {
  const auto device = static_cast<c10::DeviceIndex>(group.device_index);
  c10::cuda::set_device(device);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = group.timeout;
  options->group_name = group.name;
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(group.store, group.rank, group.size, options);
  backend->setBoundDeviceId(at::Device(at::kCUDA, device));
  return backend;
}

}  // namespace

// Found by name with dlsym; both sides are C++ of the same build.
extern "C" __attribute__((visibility("default"))) c10::intrusive_ptr<c10d::Backend>
shardproof_make_nccl(const shardproof::NcclGroup& group) {
  return make_nccl(group);
}
