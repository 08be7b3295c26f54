#include "comm/nccl_backend.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/child_answer.h"
#include "base/error.h"
#include "comm/cuda_device.h"
#include "comm/nccl_entry.h"

namespace shardproof {
namespace {

std::filesystem::path plugin_path(const NcclSettings& settings) {
  if (!settings.plugin.empty()) return settings.plugin;
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() /
         "libshardproof_nccl.so";
}

// Returns the plugin's function. The plugin stays loaded, since its backends may exist until exit.
MakeNccl* load_plugin(const NcclSettings& settings) {
  load_cuda();
  const std::filesystem::path path = plugin_path(settings);
  if (!std::filesystem::exists(path)) {
    throw_refused(fmt::format("no NCCL here: {} was not built (no CUDA toolkit at build time)",
                              path.filename().string()),
                  "build the cuda preset on a machine with the CUDA toolkit and nccl.h");
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* entry = library != nullptr ? ::dlsym(library, kNcclEntryName) : nullptr;
  if (entry == nullptr) {
    const char* why = ::dlerror();
    throw_refused(fmt::format("the NCCL plugin cannot be loaded: {}", why ? why : "unknown"),
                  "build it with the LibTorch that this program runs with");
  }
  return reinterpret_cast<MakeNccl*>(entry);
}

}  // namespace

std::string why_no_nccl(const NcclSettings& settings) {
  return answer_of_child([&]() -> std::string {
    try {
      load_plugin(settings);
      return "";
    } catch (const Error& error) {
      return error.fact();
    }
  });
}

BackendFactory nccl_factory(StorePtr store, int64_t rank, const NcclSettings& settings) {
  MakeNccl* const make = load_plugin(settings);
  auto made = std::make_shared<std::map<std::string, int64_t>>();
  return [=](const std::string& name,
             const std::vector<int64_t>& ranks) -> c10::intrusive_ptr<c10d::Backend> {
    const std::string key = fmt::format("{}[{}]", name, fmt::join(ranks, ","));
    const int64_t count = (*made)[key]++;
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    SHARDPROOF_ASSERT(found != ranks.end(), "a rank joins only its own groups");
    const NcclGroup group{.store = with_prefix(store, fmt::format("{}#{}", key, count)),
                          .rank = static_cast<int>(found - ranks.begin()),
                          .size = static_cast<int>(ranks.size()),
                          .device_index = settings.device_index,
                          .timeout = settings.timeout,
                          .name = key};
    return make(group);
  };
}

}  // namespace shardproof
