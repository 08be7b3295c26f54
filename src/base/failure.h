// What a program prints when a command fails, and its exit status: one for all programs.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace shardproof {

int exit_status_of(const Error& error);

// Prints "shardproof: <message>" to standard error. A message may quote a file or an argument: each
// of its lines is cut, and fit for a terminal.
void print_failure(const std::string& message);

// Returns what `run` returns. Prints its exception, if any, and returns the exit status of that.
int run_or_say_why(const std::function<int()>& run);

}  // namespace shardproof
