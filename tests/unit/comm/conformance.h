// The cases that every world must pass: one call, its inputs, and its result by sequential
// arithmetic.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/mesh_comm.h"

namespace shardproof::tests {

enum class Op {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kScatter,
  kGather,
  kRing
};
enum class Memory { kContiguous, kTransposed, kStrided, kExpanded };
enum class Sizes { kEven, kUneven, kEmpty };  // uneven: some are 0; empty: all are 0

struct Case {
  Op op = Op::kAllReduce;
  at::ScalarType dtype = at::kDouble;
  ReduceOp reduce = ReduceOp::kSum;
  Memory memory = Memory::kContiguous;
  Sizes sizes = Sizes::kEven;
  int64_t dim = 0;
  bool asynchronous = false;
  at::DeviceType device = at::kCPU;
};

std::string describe(const Case& test);
// Every op, reduce op and dtype, with every memory layout, size, dim and asynchronous form.
std::vector<Case> all_cases();
std::vector<Case> on_device(std::vector<Case> cases, at::DeviceType device);

// Makes the call with this rank's input, which differs from those of other ranks.
at::Tensor call(const Case& test, Communicator& comm);
// "" if `actual` equals the result of the plain arithmetic for this rank, else the difference.
std::string check(const Case& test, const Communicator& comm, const at::Tensor& actual);

}  // namespace shardproof::tests
