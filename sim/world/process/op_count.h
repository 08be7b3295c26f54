// How many ops of LibTorch this process has begun: the progress of a rank that computes for long
// between two collective calls.
#pragma once

#include <cstdint>

namespace shardproof::sim::world {

// By any thread. Counting costs a little, so it begins with the first question.
uint64_t ops_begun();

}  // namespace shardproof::sim::world
