#include "sim/world/process/process_clock.h"

#include <sys/wait.h>

#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace shardproof::sim::world {

namespace {

// 'R', 'S', 'T' and so on; 0 when it has gone. `folder`: /proc/PID, or that of one of its threads.
char state_in(const std::filesystem::path& folder) {
  std::ifstream file(folder / "stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // "12 (name) S ...": a name may hold anything
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '\0' : line[name_end + 2];
}

std::filesystem::path folder_of(pid_t pid) { return "/proc/" + std::to_string(pid); }

}  // namespace

double cpu_seconds_of(pid_t pid) {
  clockid_t clock;
  timespec used;
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

int64_t runnable_threads(pid_t pid) {
  int64_t count = 0;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(folder_of(pid) / "task", gone)) {
    const char state = state_in(task.path());
    if (state == 'R' || state == 'D') ++count;
  }
  return count;
}

bool is_stopped(pid_t pid) {
  const char state = state_in(folder_of(pid));
  return state == 'T' || state == 't';
}

std::string exit_text(int status) {
  if (WIFEXITED(status)) return "exited with status " + std::to_string(WEXITSTATUS(status));
  if (!WIFSIGNALED(status)) return "ended in an unknown way";
  const char* name = ::sigabbrev_np(WTERMSIG(status));
  if (!name) return "was killed by signal " + std::to_string(WTERMSIG(status));
  return std::string("was killed by SIG") + name;
}

std::string last_lines(const std::string& text, int count) {
  std::deque<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    lines.push_back(line);
    if (static_cast<int>(lines.size()) > count) lines.pop_front();
  }
  std::string joined;
  for (const std::string& line : lines) joined += (joined.empty() ? "" : "\n") + line;
  return joined;
}

}  // namespace shardproof::sim::world
