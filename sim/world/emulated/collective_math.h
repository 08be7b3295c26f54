// The data movement of a collective whose members have all met: copies and sums of their tensors.
//
// Sums are accumulated in group rank order 0, 1, .., n-1:
//   float64 in float64, float32 in float32; float16 and bfloat16 in float32, rounded once at the
//   end; integers in their own type, wrapping; bool: sum and max are "or", product and min are
//   "and"; avg is the sum divided by n in the accumulation type. NaN wins in max and min.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace shardproof::sim::world {

// A run of elements: all of a tensor, or a contiguous piece of a contiguous one.
struct Slice {
  const at::Tensor* tensor = nullptr;
  int64_t offset = 0;
  int64_t numel = 0;
};

// One member's input or output: a list of tensors, or one contiguous tensor divided into parts.
class Parts {
 public:
  Parts() = default;
  static Parts list(std::vector<at::Tensor> tensors);
  static Parts even(at::Tensor tensor, int64_t count);
  // Part i has `rows[i]` rows of dim 0.
  static Parts rows(at::Tensor tensor, const std::vector<int64_t>& rows);

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  int64_t count() const;
  Slice part(int64_t index) const;
  Parts clone() const;  // new contiguous tensors with the same contents
  Parts like() const;   // new contiguous tensors, uninitialized
  void copy_from(const Parts& other);

 private:
  Parts map(const std::function<at::Tensor(const at::Tensor&)>& make) const;
  std::vector<at::Tensor> tensors_;
  int64_t even_count_ = 0;
  std::vector<int64_t> offsets_;  // elements, one more than parts
};

struct Member {
  Parts input;
  Parts output;
};

// The bytes of the largest input; for kAllGather and kGather those of all inputs.
double bytes_moved(Op op, const std::vector<Member>& members);

// Runs the operation for all members in group order. All tensors have one dtype and one device.
//
//   all_reduce       out[i].part(k) = reduce over j of in[j].part(k)
//   all_gather       out[i].part(j) = in[j].part(0)
//   reduce_scatter   out[i].part(0) = reduce over j of in[j].part(i)
//   all_to_all       out[i].part(j) = in[j].part(i)
//   broadcast        out[i].part(k) = in[root].part(k)
//   gather           out[root].part(j) = in[j].part(0)
//   scatter          out[i].part(0) = in[root].part(i)
//   send, recv       out[1].part(0) = in[0].part(0)
void carry_out(Op op, ReduceOp reduce, int64_t root, const std::vector<Member*>& members);

// Reduces `inputs` in order into each of `outputs` (which may be the inputs).
void reduce_slices(const std::vector<Slice>& inputs, const std::vector<Slice>& outputs,
                   ReduceOp op);

}  // namespace shardproof::sim::world
