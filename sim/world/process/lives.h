// A process that another launcher started once, but whose rank may have to start again: each life
// of the rank is a child of that process.
//
//   the launcher's process: waits --+-- life 0 of the rank: served a case that killed it
//                                   +-- life 1: the next world
#pragma once

#include <cstdint>
#include <functional>

namespace shardproof::sim::world {

// With this status a life asks for the next one; ended by a signal it is followed by one too.
inline constexpr int kNextLife = 97;

// Forks a child that runs `live`, which does not return, and follows it by the next. Exits with the
// status of the first life that ends with another status. Before any thread and any tensor op. Once
// `end` (a descriptor; -1: never) is readable it calls `on_end` and exits with status 3, and the
// life with it.
[[noreturn]] void run_lives(const std::function<void(int64_t life)>& live, int end = -1,
                            const std::function<void()>& on_end = {});

}  // namespace shardproof::sim::world
