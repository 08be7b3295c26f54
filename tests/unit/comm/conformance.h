// The cases that every world must pass: one call with its inputs, and what it must give, by plain
// sequential arithmetic.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/mesh_comm.h"

namespace shardproof::tests {

enum class Op {
  kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kScatter, kGather, kRing
};
enum class Memory { kContiguous, kTransposed, kStrided, kExpanded };
enum class Sizes { kEven, kUneven, kEmpty };  // uneven sizes include 0; empty: no element anywhere

struct Case {
  Op op;
  at::ScalarType dtype = at::kDouble;
  ReduceOp reduce = ReduceOp::kSum;
  Memory memory = Memory::kContiguous;
  Sizes sizes = Sizes::kEven;
  int64_t dim = 0;
  bool asynchronous = false;
  at::DeviceType device = at::kCPU;
};

std::string describe(const Case& test);
// Every op x reduce op x dtype, and every memory layout, sizes, dim and asynchronous form.
std::vector<Case> all_cases();
// A thinner choice for slow worlds: every op in every form, each dtype and reduce op once or twice.
std::vector<Case> thin_cases();
std::vector<Case> on_device(std::vector<Case> cases, at::DeviceType device);

// Makes the call with this rank's input (inputs differ over ranks and positions).
at::Tensor call(const Case& test, Communicator& comm);
// "" when `actual` is what the plain arithmetic gives for this rank; else what is wrong.
std::string check(const Case& test, const Communicator& comm, const at::Tensor& actual);

}  // namespace shardproof::tests
