// What to say when the machine refuses memory, threads, processes or open files.
#pragma once

#include <exception>
#include <string>

namespace shardproof {

// A sentence with the numbers when `error` is std::bad_alloc, LibTorch's out-of-memory error, a
// thread that could not be started or a file that was one too many; "" for every other error.
std::string shortage_text(const std::exception& error);

// The code of an Error of kBadInput for what the machine lacks.
inline constexpr const char* kShortage = "shortage";

// Throws Error(kBadInput): the system refused `what` with this errno. The fix names the limit.
[[noreturn]] void throw_shortage(const std::string& what, int error);
// The same where the errno is that of one open file too many; else returns.
void throw_if_too_many_files(const std::string& what, int error);

}  // namespace shardproof
