#include "sim/cli/machine.h"

#include <filesystem>

#include "comm/cuda_device.h"
#include "comm/nccl_backend.h"
#include "sim/case/names.h"

namespace shardproof::sim {

namespace fs = std::filesystem;

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

std::optional<MachineLimits> limits_for(const WorldArguments& arguments) {
  return arguments.ignore_limits ? std::nullopt : std::optional(machine_limits());
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
