// How a process ended, in words.
#pragma once

#include <string>

namespace shardproof::sim::world {

// "was killed by SIGKILL", "exited with status 3". `status` as waitpid gives it.
std::string exit_text(int status);
// The last `count` lines of `text` that are not blank.
std::string last_lines(const std::string& text, int count);

}  // namespace shardproof::sim::world
