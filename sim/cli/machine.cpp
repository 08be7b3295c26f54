#include "sim/cli/machine.h"

#include "comm/cuda_device.h"
#include "comm/nccl_backend.h"
#include "sim/case/names.h"

namespace shardproof::sim {

std::string why_not(const std::string& backend, const std::string& device) {
  if (backend == "gloo" && device == "cuda") return "Gloo ranks run on CPU; use --device cpu";
  if (backend == "nccl" && device != "cuda") return "NCCL moves GPU memory only; add --device cuda";
  if (backend == "nccl") return why_no_nccl();
  if (device == "cuda") return why_no_cuda();
  return "";
}

std::vector<std::string> runnable_backends(const std::string& device) {
  std::vector<std::string> backends;
  for (const std::string& backend : known_backends()) {
    if (why_not(backend, device).empty()) backends.push_back(backend);
  }
  return backends;
}

}  // namespace shardproof::sim
