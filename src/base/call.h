// One call of a collective by one rank, and the sentence that describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"

namespace shardproof {

enum class Op {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kScatter,
  kGather,
  kSend,
  kRecv,
  kBarrier,
  kMakeGroup,  // of a process world, before the group's first call
};
constexpr std::array<const char*, 11> names_of(Op) {
  return {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter",
          "gather",     "send",       "recv",           "barrier",    "make_group"};
}
constexpr bool is_message(Op op) { return op == Op::kSend || op == Op::kRecv; }

enum class ReduceOp { kSum, kAvg, kMax, kMin, kProduct };
constexpr std::array<const char*, 5> names_of(ReduceOp) {
  return {"sum", "avg", "max", "min", "product"};
}

// Ranks are global; `group_rank` and `root` are positions in the group; splits are in group order.
struct Call {
  int64_t rank = 0;
  std::string group = {};  // name with axis and ranks: "tp[2,3]"
  int64_t group_rank = 0;
  std::shared_ptr<const std::vector<int64_t>> group_ranks = {};  // shared by all calls of the group
  int64_t sequence = 0;  // of the rank's calls in the group; send, recv: per other rank and tag
  Op op = Op::kBarrier;
  std::optional<ReduceOp> reduce = {};  // none: the call reduces nothing
  std::string label = {};               // "model.layers.0.mlp.down_proj forward"
  std::string dtype = {};
  std::vector<int64_t> shape = {};  // of the caller's input; scatter and recv: of the output
  std::vector<int64_t> strides = {};
  std::vector<int64_t> split_sizes =
      {};  // all_to_all: of the input; gather, scatter: the root's parts
  std::vector<int64_t> output_sizes = {};  // all_to_all: splits of the output
  int64_t dim = -1;                        // all_gather, reduce_scatter: never counted from the end
  int64_t root = -1;                       // send, recv: the other rank; -1: the call has no root
  int64_t tag = 0;                         // send, recv
  int64_t bytes = 0;                       // of the tensor that `shape` describes
  bool asynchronous = false;
};

// "all_reduce(sum) tp[0,1] [4,16,32] float64 'model.layers.0.mlp.down_proj forward'"
std::string describe(const Call& call);
std::string op_text(const Call& call);      // "all_reduce(sum)", "send to rank 3"
std::string reduce_text(const Call& call);  // "sum"; "": the call reduces nothing

std::string list_text(const std::vector<int64_t>& values);  // "[4,16,32]"
// "tp[2,3]"; more than 16 ranks at one distance are shortened: "world[0,1..511]".
std::string group_name(const std::string& axis, const std::vector<int64_t>& ranks);

}  // namespace shardproof
