#include "sim/cli/machine.h"

#include <filesystem>

#include "comm/cuda_device.h"
#include "comm/nccl_backend.h"

namespace shardproof::sim {

namespace fs = std::filesystem;

std::string why_not(Backend backend, DeviceKind device) {
  const bool cuda = device == DeviceKind::kCuda;
  if (backend == Backend::kGloo && cuda) return "Gloo ranks run on CPU; use --device cpu";
  if (backend == Backend::kNccl && !cuda) return "NCCL moves GPU memory only; add --device cuda";
  if (backend == Backend::kNccl) return why_no_nccl();
  return cuda ? why_no_cuda() : "";
}

std::vector<Backend> runnable_backends(DeviceKind device) {
  std::vector<Backend> backends;
  for (const Backend backend : {Backend::kEmulated, Backend::kGloo, Backend::kNccl}) {
    if (why_not(backend, device).empty()) backends.push_back(backend);
  }
  return backends;
}

std::string find_in_repository(const std::string& relative_path) {
  if (fs::exists(relative_path)) return relative_path;
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  while (!error && folder.has_relative_path()) {
    if (fs::exists(folder / relative_path)) return (folder / relative_path).string();
    folder = folder.parent_path();
  }
  return "";
}

}  // namespace shardproof::sim
