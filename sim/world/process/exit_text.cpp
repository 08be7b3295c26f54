#include "sim/world/process/exit_text.h"

#include <sys/wait.h>

#include <cstring>
#include <deque>
#include <sstream>

namespace shardproof::sim::world {

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
