#include "comm/cuda_device.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "base/child_answer.h"
#include "base/error.h"

namespace shardproof {
namespace {

std::filesystem::path torch_folder() {
  Dl_info info{};
  const void* inside = reinterpret_cast<const void*>(&at::globalContext);
  if (::dladdr(inside, &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

struct Problem {
  std::string what;  // "": CUDA is loaded
  std::string fix;
};

Problem find_problem() {
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return {"no GPU here: this machine has no NVIDIA driver (libcuda.so.1)",
            "use device cpu, or a machine with a GPU"};
  }
  const std::filesystem::path library = torch_folder() / "libtorch_cuda.so";
  if (!std::filesystem::exists(library)) {
    return {fmt::format("LibTorch in {} was installed without CUDA", torch_folder().string()),
            "pass --torch with a CUDA build of the same version"};
  }
  if (::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* why = ::dlerror();
    return {fmt::format("the CUDA half of LibTorch cannot be loaded: {}", why ? why : "unknown"),
            "install the nvidia packages that the LibTorch wheel names"};
  }
  if (!at::hasCUDA() || at::getNumGPUs() == 0) {
    return {"no GPU here: the NVIDIA driver shows no device", "use device cpu"};
  }
  return {};
}

}  // namespace

std::string why_no_cuda() {
  static const std::string why = answer_of_child([] { return find_problem().what; });
  return why;
}

int64_t gpu_count() { return at::getNumGPUs(); }

void load_cuda() {
  static const Problem problem = find_problem();
  if (problem.what.empty()) return;
  throw_refused(problem.what, problem.fix);
}

}  // namespace shardproof
