#include "sim/world/process/process_clock.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

namespace shardproof::sim {

double cpu_seconds_of(pid_t pid) {
  clockid_t clock;
  timespec used;
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

int64_t runnable_threads(pid_t pid) {
  int64_t count = 0;
  std::error_code gone;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::ifstream file(task.path() / "stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');  // "12 (name) S ...": a name may hold anything
    if (name_end == std::string::npos || name_end + 2 >= line.size()) continue;
    const char state = line[name_end + 2];
    if (state == 'R' || state == 'D') ++count;
  }
  return count;
}

}  // namespace shardproof::sim
