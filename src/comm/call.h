// One call of a collective by one rank, and the sentence that describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardproof {

// Ranks are global; `group_rank` and `root` are positions in the group; splits are in group order.
struct Call {
  int64_t rank = 0;
  std::string group;  // name with axis and ranks: "tp[2,3]"
  int64_t group_rank = 0;
  std::shared_ptr<const std::vector<int64_t>> group_ranks;  // shared by all calls of the group
  int64_t sequence = 0;   // of the rank's calls in the group; send, recv: per other rank and tag
  std::string op;         // "all_reduce", ..., "send", "recv"
  std::string reduce_op;  // "sum", ..; "": the call reduces nothing
  std::string label;      // "model.layers.0.mlp.down_proj forward"
  std::string dtype;
  std::vector<int64_t> shape;  // of the caller's input; scatter and recv: of the output
  std::vector<int64_t> strides;
  std::vector<int64_t> split_sizes;   // all_to_all: of the input; gather, scatter: the root's parts
  std::vector<int64_t> output_sizes;  // all_to_all: splits of the output
  int64_t dim = -1;                   // all_gather, reduce_scatter: never counted from the end
  int64_t root = -1;                  // send, recv: the other rank; -1: the call has no root
  int64_t tag = 0;                    // send, recv
  int64_t bytes = 0;                  // of the tensor that `shape` describes
  bool asynchronous = false;
};

// "all_reduce(sum) tp[0,1] [4,16,32] float64 'model.layers.0.mlp.down_proj forward'"
std::string describe(const Call& call);
std::string op_text(const Call& call);  // "all_reduce(sum)", "send to rank 3"
bool is_message(const Call& call);      // send or recv

std::string list_text(const std::vector<int64_t>& values);  // "[4,16,32]"
// "tp[2,3]"; more than 16 ranks at one distance are shortened: "world[0,1..511]".
std::string group_name(const std::string& axis, const std::vector<int64_t>& ranks);

}  // namespace shardproof
