// A call line as CBOR: its fields one after another.
#include "sim/world/match/call_line.h"

#include "base/error.h"
#include "sim/case/cbor.h"

namespace shardproof::sim::world {
namespace {

// Writes or reads the fields; those that are written are const.
template <class Codec, class Line, class Ranks>
void line_fields(Codec& codec, Line& line, Ranks& group_ranks) {
  codec(line.rank, group_ranks, line.group, line.group_rank, line.sequence);
  codec.one_of(line.op, Op::kMakeGroup, "op");
  codec.one_of(line.reduce, ReduceOp::kProduct, "reduction");
  codec(line.label, line.dtype, line.shape, line.strides, line.split_sizes, line.output_sizes);
  codec(line.dim, line.root, line.tag, line.asynchronous, line.waiting);
}

}  // namespace

std::string encode_line(const CallLine& line) {
  CborWriter out;
  const std::vector<int64_t> nobody;
  line_fields(out, line, line.group_ranks ? *line.group_ranks : nobody);
  return out.take();
}

std::optional<CallLine> decode_line(std::string_view bytes) {
  CborReader in(bytes);
  CallLine line;
  auto group_ranks = std::make_shared<std::vector<int64_t>>();
  try {
    line_fields(in, line, *group_ranks);
  } catch (const InternalError&) {
    return std::nullopt;
  }
  if (!in.empty()) return std::nullopt;
  line.group_ranks = std::move(group_ranks);
  return line;
}

}  // namespace shardproof::sim::world
