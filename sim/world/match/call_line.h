// The line that a rank sends before each collective call: what it is about to call, as plain text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof::sim {

// One call as one rank made it. Ranks are global; `group_rank`, `root` and splits are in group
// order.
struct CallLine {
  int64_t rank = 0;
  std::shared_ptr<const std::vector<int64_t>> group_ranks;  // shared by all calls of the group
  std::string group;             // "tp[2,3]"
  int64_t group_rank = 0;
  int64_t sequence = 0;          // in this group on this rank; send and recv: in this channel
  std::string op;                // "all_reduce", ..., "send", "recv"
  std::string reduce_op;         // "" where there is none
  std::string label;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  std::vector<int64_t> split_sizes;   // all_to_all: input splits; gather, scatter: the root's parts
  std::vector<int64_t> output_sizes;  // all_to_all: output splits
  int64_t dim = -1;
  int64_t root = -1;                  // send, recv: the other side
  int64_t tag = 0;
  bool asynchronous = false;
  bool waiting = false;  // not a new call: the rank now waits for this asynchronous one
};

// From any struct with the fields of CollectiveCall (src/comm/communicator.h); this folder knows
// the standard library only.
template <class Call>
CallLine line_of(const Call& call, int64_t rank) {
  return {.rank = rank, .group_ranks = call.group_ranks, .group = call.group,
          .group_rank = call.group_rank, .sequence = call.sequence, .op = call.op,
          .reduce_op = call.reduce_op, .label = call.label, .dtype = call.dtype,
          .shape = call.shape, .strides = call.strides, .split_sizes = call.split_sizes,
          .output_sizes = call.output_sizes, .dim = call.dim, .root = call.root, .tag = call.tag,
          .asynchronous = call.asynchronous, .waiting = false};
}

// One line of text without a newline, and back. decode gives nothing for a malformed line.
std::string encode_line(const CallLine& line);
std::optional<CallLine> decode_line(std::string_view text);

bool is_point_to_point(const CallLine& line);
std::string op_text(const CallLine& line);       // "all_reduce(sum)", "send to rank 3"
// "all_reduce(sum) tp[0,1] [4,16,32] float64 'layers.0.mlp.down forward'"
std::string describe_line(const CallLine& line);
std::string list_text(const std::vector<int64_t>& values);  // "[4,16,32]"

}  // namespace shardproof::sim
