// doctor: lists what is installed and which worlds can run here, with reasons.
#include <fmt/format.h>
#include <sys/utsname.h>

#include <iostream>
#include <thread>

#include "base/physical_memory.h"
#include "comm/cuda_device.h"
#include "parallel/tp/cuda_kernels_file.h"
#include "sim/case/names.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/version.h"
#include "sim/lint/case_reader.h"
#include "sim/run/golden_cache.h"

namespace shardproof::sim::cli {

namespace {

std::string machine_line() {
  struct utsname name {};
  ::uname(&name);
  return fmt::format("machine    {} {}, {} cores, {:.1f} GiB\n", name.sysname, name.release,
                     std::thread::hardware_concurrency(), physical_memory_gib());
}

std::string world_line(const std::string& backend, const std::string& device) {
  const std::string reason = why_not(enum_of<Backend>(backend), enum_of<DeviceKind>(device));
  return fmt::format("world      {:<9} {:<5} {}\n", backend, device,
                     reason.empty() ? "yes" : "no: " + reason);
}

// Built kernels are not tested kernels: they never ran on a machine without a GPU.
std::string kernels_line() {
  const std::string no_gpu = why_no_cuda();
  std::string state =
      "no: libshardproof_cuda.so is not built; `./shardproof build` makes it where nvcc is";
  if (!cuda_kernels_file().empty()) {
    state = no_gpu.empty() ? "yes; the test unit_parallel_tp [TP-7] checks them on this GPU"
                           : "built but untested, nothing here can run them: " + no_gpu;
  }
  return fmt::format("kernels    {:<9} {}\n", "cuda", state);
}

std::string file_line(const std::string& what, const std::string& path) {
  const std::string found = lint::find_in_repository(path);
  return fmt::format("{:<10} {}\n", what, found.empty() ? "no " + path + " here" : found);
}

// The Python that `report` starts.
std::string python_line() {
  const std::string script = lint::find_in_repository("reports/report.py");
  const std::string python = script.empty() ? kPython : python_beside(script);
  return fmt::format("{:<10} {}\n", "python",
                     python == kPython ? python + ", the first one on PATH" : python);
}

}  // namespace

int doctor_command() {
  std::cout << "program    " << version_text() << '\n' << machine_line();
  for (const std::string& device : known_devices()) {
    for (const std::string& backend : known_backends()) std::cout << world_line(backend, device);
  }
  std::cout << kernels_line();
  const auto cache = run::GoldenCache::default_folder();
  std::cout << file_line("scenarios", "scenarios") << file_line("reports", "reports/report.py")
            << python_line() << "goldens    "
            << (cache.empty() ? std::string("not kept: HOME is not set") : cache.string()) << '\n';
  return 0;
}

}  // namespace shardproof::sim::cli
