// One call of a collective as one rank makes it, and the one sentence that describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardproof {

// Ranks are global; `group_rank`, `root` and splits are in group order.
struct Call {
  int64_t rank = 0;
  std::string group;      // "tp[2,3]": axis and ranks
  int64_t group_rank = 0;
  std::shared_ptr<const std::vector<int64_t>> group_ranks;  // shared by all calls of the group
  int64_t sequence = 0;   // in this group on this rank, from 0; send and recv: in this channel
  std::string op;         // "all_reduce", ..., "send", "recv"
  std::string reduce_op;  // "" where there is none
  std::string label;      // "model.layers.0.mlp.down_proj forward"
  std::string dtype;
  std::vector<int64_t> shape;  // of the input, as given
  std::vector<int64_t> strides;
  std::vector<int64_t> split_sizes;   // all_to_all: input splits; gather, scatter: the root's parts
  std::vector<int64_t> output_sizes;  // all_to_all: output splits
  int64_t dim = -1;                   // all_gather, reduce_scatter: counted from the front
  int64_t root = -1;                  // -1 where there is none; send, recv: the other side
  int64_t tag = 0;                    // send, recv
  int64_t bytes = 0;                  // of the input
  bool asynchronous = false;
};

// "all_reduce(sum) tp[0,1] [4,16,32] float64 'model.layers.0.mlp.down_proj forward'"
std::string describe(const Call& call);
std::string op_text(const Call& call);  // "all_reduce(sum)", "send to rank 3"
bool is_message(const Call& call);      // send or recv

std::string list_text(const std::vector<int64_t>& values);  // "[4,16,32]"
// "tp[2,3]"; a long regular list as "world[0,1..511]".
std::string group_name(const std::string& axis, const std::vector<int64_t>& ranks);

}  // namespace shardproof
