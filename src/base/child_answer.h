// Asks a question in a child process, for questions that leave marks: CUDA, once started, does not
// work in processes that are forked afterwards.
#pragma once

#include <functional>
#include <string>

namespace shardproof {

// Returns what `question` returns in a forked child, or a sentence that says how the child ended.
// Call it while this process has one thread.
std::string answer_of_child(const std::function<std::string()>& question);

}  // namespace shardproof
