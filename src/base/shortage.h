// What to say when the machine refuses memory or threads.
#pragma once

#include <exception>
#include <string>

namespace shardproof {

// A sentence with the numbers when `error` is std::bad_alloc, LibTorch's out-of-memory error or a
// thread that could not be started; "" for every other error.
std::string shortage_text(const std::exception& error);

}  // namespace shardproof
