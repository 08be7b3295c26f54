// Copies and reductions over the tensors of a meeting's members.
#include "sim/world/emulated/collective_math.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "sim/world/emulated/reduce_memory.h"

namespace shardproof::sim::world {
namespace {

bool plain_memory(const Slice& slice) {
  return slice.tensor->is_cpu() && slice.tensor->is_contiguous();
}

char* address(const Slice& slice) {
  return static_cast<char*>(slice.tensor->data_ptr()) +
         slice.offset * static_cast<int64_t>(slice.tensor->element_size());
}

at::Tensor view_of(const Slice& slice) {
  if (slice.numel == slice.tensor->numel()) return *slice.tensor;
  return slice.tensor->view({-1}).narrow(0, slice.offset, slice.numel);
}

void copy_slice(const Slice& from, const Slice& to) {
  SHARDPROOF_ASSERT(from.numel == to.numel, "a part of a collective does not fit where it goes");
  SHARDPROOF_ASSERT(from.tensor->scalar_type() == to.tensor->scalar_type(),
                    "a collective changes no dtype");
  if (from.numel == 0) return;
  if (plain_memory(from) && plain_memory(to)) {
    char* target = address(to);
    const char* source = address(from);
    const auto bytes = static_cast<size_t>(from.numel) * from.tensor->element_size();
    if (target != source) std::memmove(target, source, bytes);
    return;
  }
  at::Tensor target = view_of(to);
  const at::Tensor source = view_of(from);
  target.copy_(source.reshape(target.sizes()));
}

void reduce_on_cpu(const std::vector<Slice>& inputs, const std::vector<Slice>& outputs,
                   ReduceOp op) {
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (const Slice& slice : inputs) sources.push_back(address(slice));
  for (const Slice& slice : outputs) targets.push_back(address(slice));
  reduce_memory(inputs[0].tensor->scalar_type(), sources, targets, inputs[0].numel, op);
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return at::maximum(a, b);
    case ReduceOp::kMin:
      return at::minimum(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

// The same arithmetic by at:: ops on the current stream, for strided tensors and other devices.
void reduce_with_ops(const std::vector<Slice>& inputs, const std::vector<Slice>& outputs,
                     ReduceOp op) {
  const at::ScalarType dtype = inputs[0].tensor->scalar_type();
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  const at::ScalarType sum_type = half ? at::kFloat : dtype;
  at::Tensor sum = view_of(inputs[0]).to(sum_type);
  for (size_t j = 1; j < inputs.size(); ++j) {
    sum = combine(sum, view_of(inputs[j]).reshape(sum.sizes()).to(sum_type), op);
  }
  if (op == ReduceOp::kAvg) {  // a tensor divides; a number's rounded reciprocal multiplies
    sum = sum / at::full({}, static_cast<double>(inputs.size()), sum.options());
  }
  if (inputs.size() == 1) sum = sum.clone();
  for (const Slice& output : outputs) {
    at::Tensor target = view_of(output);
    target.copy_(sum.reshape(target.sizes()));
  }
}

ReduceOp for_dtype(ReduceOp op, at::ScalarType dtype) {
  if (dtype != at::kBool) return op;
  if (op == ReduceOp::kSum) return ReduceOp::kMax;
  return op == ReduceOp::kProduct ? ReduceOp::kMin : op;
}

void all_reduce(ReduceOp op, const std::vector<Member*>& members) {
  for (int64_t k = 0; k < members[0]->input.count(); ++k) {
    std::vector<Slice> inputs, outputs;
    for (const Member* member : members) inputs.push_back(member->input.part(k));
    for (const Member* member : members) outputs.push_back(member->output.part(k));
    reduce_slices(inputs, outputs, op);
  }
}

void reduce_scatter(ReduceOp op, const std::vector<Member*>& members) {
  for (size_t i = 0; i < members.size(); ++i) {
    std::vector<Slice> inputs;
    for (const Member* member : members)
      inputs.push_back(member->input.part(static_cast<int64_t>(i)));
    reduce_slices(inputs, {members[i]->output.part(0)}, op);
  }
}

void broadcast(size_t root, const std::vector<Member*>& members) {
  for (size_t i = 0; i < members.size(); ++i) {
    if (i == root) continue;
    for (int64_t k = 0; k < members[i]->output.count(); ++k) {
      copy_slice(members[root]->input.part(k), members[i]->output.part(k));
    }
  }
}

}  // namespace

Parts Parts::list(std::vector<at::Tensor> tensors) {
  Parts parts;
  parts.tensors_ = std::move(tensors);
  return parts;
}

Parts Parts::even(at::Tensor tensor, int64_t count) {
  SHARDPROOF_ASSERT(tensor.is_contiguous() && tensor.numel() % count == 0,
                    "only a contiguous tensor divides into even parts");
  Parts parts;
  parts.tensors_.push_back(std::move(tensor));
  parts.even_count_ = count;
  return parts;
}

Parts Parts::rows(at::Tensor tensor, const std::vector<int64_t>& rows) {
  SHARDPROOF_ASSERT(tensor.is_contiguous(), "only a contiguous tensor divides into rows");
  int64_t row = 1;
  for (int64_t d = 1; d < tensor.dim(); ++d) row *= tensor.size(d);
  Parts parts;
  parts.offsets_.push_back(0);
  for (const int64_t count : rows) parts.offsets_.push_back(parts.offsets_.back() + count * row);
  SHARDPROOF_ASSERT(parts.offsets_.back() == tensor.numel(), "the parts' rows sum to the tensor's");
  parts.tensors_.push_back(std::move(tensor));
  return parts;
}

int64_t Parts::count() const {
  if (even_count_ != 0) return even_count_;
  if (!offsets_.empty()) return static_cast<int64_t>(offsets_.size()) - 1;
  return static_cast<int64_t>(tensors_.size());
}

Slice Parts::part(int64_t index) const {
  SHARDPROOF_ASSERT(index >= 0 && index < count(), "a collective's part that nobody gave");
  const auto i = static_cast<size_t>(index);
  if (even_count_ != 0) {
    const int64_t numel = tensors_[0].numel() / even_count_;
    return {&tensors_[0], index * numel, numel};
  }
  if (!offsets_.empty()) return {&tensors_[0], offsets_[i], offsets_[i + 1] - offsets_[i]};
  return {&tensors_[i], 0, tensors_[i].numel()};
}

Parts Parts::map(const std::function<at::Tensor(const at::Tensor&)>& make) const {
  Parts parts = *this;
  for (at::Tensor& tensor : parts.tensors_) tensor = make(tensor);
  return parts;
}

Parts Parts::clone() const {
  return map([](const at::Tensor& t) { return t.clone(at::MemoryFormat::Contiguous); });
}

Parts Parts::like() const {
  return map([](const at::Tensor& t) { return at::empty(t.sizes(), t.options()); });
}

void Parts::copy_from(const Parts& other) {
  for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(other.tensors_[i]);
}

void reduce_slices(const std::vector<Slice>& inputs, const std::vector<Slice>& outputs,
                   ReduceOp op) {
  if (inputs[0].numel == 0) return;
  op = for_dtype(op, inputs[0].tensor->scalar_type());
  const auto plain = [](const std::vector<Slice>& slices) {
    return std::all_of(slices.begin(), slices.end(), plain_memory);
  };
  if (plain(inputs) && plain(outputs)) return reduce_on_cpu(inputs, outputs, op);
  reduce_with_ops(inputs, outputs, op);
}

double bytes_moved(Op op, const std::vector<Member>& members) {
  const bool adds_up = op == Op::kAllGather || op == Op::kGather;
  int64_t total = 0, largest = 0;
  for (const Member& member : members) {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : member.input.tensors()) {
      if (tensor.defined()) bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
    }
    total += bytes;
    largest = std::max(largest, bytes);
  }
  return static_cast<double>(adds_up ? total : largest);
}

void carry_out(Op op, ReduceOp reduce, int64_t root, const std::vector<Member*>& members) {
  const auto count = static_cast<int64_t>(members.size());
  const auto root_index = static_cast<size_t>(std::max<int64_t>(root, 0));
  switch (op) {
    case Op::kAllReduce:
      return all_reduce(reduce, members);
    case Op::kReduceScatter:
      return reduce_scatter(reduce, members);
    case Op::kBroadcast:
      return broadcast(root_index, members);
    case Op::kAllGather:
    case Op::kAllToAll:
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < count; ++j) {
          const int64_t source = op == Op::kAllGather ? 0 : i;
          copy_slice(members[j]->input.part(source), members[i]->output.part(j));
        }
      }
      return;
    case Op::kGather:
      for (int64_t j = 0; j < count; ++j) {
        copy_slice(members[j]->input.part(0), members[root_index]->output.part(j));
      }
      return;
    case Op::kScatter:
      for (int64_t i = 0; i < count; ++i) {
        copy_slice(members[root_index]->input.part(i), members[i]->output.part(0));
      }
      return;
    case Op::kSend:
    case Op::kRecv:
      return copy_slice(members[0]->input.part(0), members[1]->output.part(0));
    case Op::kBarrier:
    case Op::kMakeGroup:
      return;
  }
}

}  // namespace shardproof::sim::world
