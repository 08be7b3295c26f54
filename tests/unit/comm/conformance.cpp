// The cases and inputs of the conformance suite, and their results by plain arithmetic.
#include "tests/unit/comm/conformance.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <numeric>

#include "tensor/dtype_name.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kColumns = 4;
constexpr std::array kDtypes{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16,
                             at::kLong,   at::kInt,   at::kByte, at::kBool};
constexpr std::array kReduceOps{ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin,
                                ReduceOp::kProduct};

bool reduces(Op op) { return op == Op::kAllReduce || op == Op::kReduceScatter; }
bool has_dim(Op op) { return op == Op::kAllGather || op == Op::kReduceScatter; }
bool has_async(Op op) {
  return op == Op::kAllReduce || op == Op::kAllGather || op == Op::kReduceScatter ||
         op == Op::kAllToAll || op == Op::kRing;
}
bool has_parts(Op op) { return op != Op::kAllReduce && op != Op::kBroadcast && op != Op::kRing; }

// The size of rank i's part.
std::vector<int64_t> part_sizes(const Case& test, int64_t count) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t uneven = (i * 3 + 2) % 5;  // 2, 0, 3, 1, 4, 2, 0
    sizes.push_back(test.sizes == Sizes::kEven ? 3 : test.sizes == Sizes::kEmpty ? 0 : uneven);
  }
  return sizes;
}

// The rows that rank `from` sends to rank `to` in an all_to_all.
int64_t rows_between(const Case& test, int64_t from, int64_t to) {
  if (test.sizes == Sizes::kEven) return 2;
  return test.sizes == Sizes::kEmpty ? 0 : (from + 2 * to) % 4;
}

// What rank i sends to each rank, and what it receives from each.
struct Exchange {
  std::vector<int64_t> sent, received;
};

Exchange exchange_of(const Case& test, int64_t i, int64_t count) {
  Exchange rows;
  for (int64_t other = 0; other < count; ++other) {
    rows.sent.push_back(rows_between(test, i, other));
    rows.received.push_back(rows_between(test, other, i));
  }
  return rows;
}

int64_t total(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

int64_t root_of(int64_t count) { return count - 1; }

// The shape of rank i's input: it is cut along test.dim, and the other dim has kColumns.
std::vector<int64_t> input_shape(const Case& test, int64_t i, int64_t count) {
  const std::vector<int64_t> parts = part_sizes(test, count);
  int64_t rows = test.sizes == Sizes::kEmpty ? 0 : 5;
  if (test.op == Op::kAllGather || test.op == Op::kGather) rows = parts[static_cast<size_t>(i)];
  if (test.op == Op::kReduceScatter || test.op == Op::kScatter) rows = total(parts);
  if (test.op == Op::kAllToAll) rows = total(exchange_of(test, i, count).sent);
  if (test.dim == 0) return {rows, kColumns};
  return {kColumns, rows};
}

// `count` small whole numbers, so that sums and products of seven ranks are exact in every dtype;
// each position and rank has a different one.
at::Tensor numbers(const Case& test, int64_t global_rank, int64_t count) {
  const at::Tensor index = at::arange(count, at::kLong);
  const at::Tensor mixed = index * 7 + global_rank * 13 + index * global_rank;
  if (test.dtype == at::kBool) return mixed.remainder(3).eq(0);
  if (reduces(test.op) && test.reduce == ReduceOp::kProduct) {
    const at::Tensor sizes = 1 + mixed.remainder(2);
    return test.dtype == at::kByte ? sizes : at::where(mixed.remainder(5).eq(0), -sizes, sizes);
  }
  return mixed.remainder(19) - (test.dtype == at::kByte ? 0 : 9);
}

at::Tensor with_memory(const at::Tensor& plain, Memory memory) {
  if (memory == Memory::kTransposed) return plain.t().contiguous().t();
  if (memory == Memory::kExpanded) {
    return plain.narrow(1, 0, std::min<int64_t>(plain.size(1), 1)).expand(plain.sizes());
  }
  if (memory == Memory::kContiguous) return plain;
  at::Tensor wide = at::zeros({plain.size(0), 2 * plain.size(1) + 1}, plain.options());
  at::Tensor strided = wide.slice(1, 0, 2 * plain.size(1), 2);
  strided.copy_(plain);
  return strided;
}

at::Tensor input_of(const Case& test, const Communicator& comm, int64_t i) {
  const std::vector<int64_t> shape = input_shape(test, i, comm.size());
  const int64_t rank = comm.ranks()[static_cast<size_t>(i)];
  const at::Tensor values = numbers(test, rank, shape[0] * shape[1]).view(shape);
  const bool can_expand = test.memory != Memory::kExpanded || shape[1] > 0;
  return with_memory(values.to(test.dtype).to(test.device),
                     can_expand ? test.memory : Memory::kContiguous);
}

// In float64, in which the sums and products are exact.
at::Tensor reduce_all(const Case& test, const std::vector<at::Tensor>& inputs) {
  at::Tensor result = inputs[0];
  for (size_t i = 1; i < inputs.size(); ++i) {
    result = test.reduce == ReduceOp::kMax       ? at::maximum(result, inputs[i])
             : test.reduce == ReduceOp::kMin     ? at::minimum(result, inputs[i])
             : test.reduce == ReduceOp::kProduct ? result * inputs[i]
                                                 : result + inputs[i];
  }
  return test.reduce == ReduceOp::kAvg ? result / static_cast<double>(inputs.size()) : result;
}

// Inputs and result are in float64 with the cut dim in front.
at::Tensor golden_rows(const Case& test, const std::vector<at::Tensor>& inputs, int64_t own) {
  const auto count = static_cast<int64_t>(inputs.size());
  const at::Tensor& of_root = inputs[static_cast<size_t>(root_of(count))];
  const auto own_part = [&](const at::Tensor& whole, const std::vector<int64_t>& sizes) {
    return whole.split_with_sizes(sizes, 0)[static_cast<size_t>(own)];
  };
  switch (test.op) {
    case Op::kAllReduce:
      return reduce_all(test, inputs);
    case Op::kReduceScatter:
      return own_part(reduce_all(test, inputs), part_sizes(test, count));
    case Op::kBroadcast:
      return of_root;
    case Op::kScatter:
      return own_part(of_root, part_sizes(test, count));
    case Op::kRing:
      return inputs[static_cast<size_t>((own + count - 1) % count)];
    case Op::kAllGather:
    case Op::kGather:
      return at::cat(inputs, 0);
    case Op::kAllToAll:
      break;
  }
  std::vector<at::Tensor> received;
  for (int64_t from = 0; from < count; ++from) {
    received.push_back(
        own_part(inputs[static_cast<size_t>(from)], exchange_of(test, from, count).sent));
  }
  return at::cat(received, 0);
}

at::Tensor ring(const Case& test, Communicator& comm, const at::Tensor& input) {
  const int64_t next = (comm.rank() + 1) % comm.size();
  const int64_t previous = (comm.rank() + comm.size() - 1) % comm.size();
  if (comm.size() == 1) return input.contiguous();  // there is no neighbor
  if (test.asynchronous) {
    PendingCollective sent = comm.send_async(input, next, "ring", 7);
    PendingCollective arriving = comm.recv_async(input, previous, "ring", 7);
    const at::Tensor arrived = arriving.wait();
    sent.wait();
    return arrived;
  }
  // Rank 0 sends first and all others receive first, so that there is no cycle of senders.
  if (comm.rank() == 0) comm.send(input, next, "ring");
  const at::Tensor arrived = comm.recv(input, previous, "ring");
  if (comm.rank() != 0) comm.send(input, next, "ring");
  return arrived;
}

}  // namespace

std::string describe(const Case& test) {
  constexpr std::array kOps{"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                            "broadcast",  "scatter",    "gather",         "ring"};
  constexpr std::array kMemory{"contiguous", "transposed", "strided", "expanded"};
  constexpr std::array kSizes{"even", "uneven", "empty"};
  return fmt::format(
      "{}({}) {} {} {} dim {}{}", kOps[static_cast<size_t>(test.op)], name_of(test.reduce),
      dtype_name(test.dtype), kMemory[static_cast<size_t>(test.memory)],
      kSizes[static_cast<size_t>(test.sizes)], test.dim, test.asynchronous ? " async" : "");
}

namespace {

constexpr std::array kOps{Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kAllToAll,
                          Op::kBroadcast, Op::kScatter,   Op::kGather,        Op::kRing};

// Every form of a call; not every op has each of them.
const std::vector<Case> kForms = {
    {.memory = Memory::kContiguous},
    {.memory = Memory::kTransposed},
    {.memory = Memory::kStrided},
    {.memory = Memory::kExpanded},
    {.sizes = Sizes::kEmpty},
    {.asynchronous = true},
    {.memory = Memory::kStrided, .asynchronous = true},
    {.dim = 1},
    {.sizes = Sizes::kUneven},
    {.sizes = Sizes::kUneven, .asynchronous = true},
    {.memory = Memory::kTransposed, .sizes = Sizes::kUneven},
    {.sizes = Sizes::kUneven, .dim = 1},
    {.sizes = Sizes::kUneven, .dim = 1, .asynchronous = true},
    {.memory = Memory::kTransposed, .sizes = Sizes::kUneven, .dim = 1},
};

void add_forms(std::vector<Case>& cases, at::ScalarType dtype) {
  for (const Op op : kOps) {
    for (Case form : kForms) {
      if (form.dim == 1 && !has_dim(op)) continue;
      if (form.asynchronous && !has_async(op)) continue;
      if (form.sizes == Sizes::kUneven && !has_parts(op)) continue;
      form.op = op;
      form.dtype = dtype;
      cases.push_back(form);
    }
  }
}

void add_reductions(std::vector<Case>& cases, at::ScalarType dtype, Op op, Sizes sizes) {
  for (const ReduceOp reduce : kReduceOps) {
    if (reduce == ReduceOp::kAvg && !at::isFloatingType(dtype)) continue;
    cases.push_back({.op = op, .dtype = dtype, .reduce = reduce, .sizes = sizes});
  }
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const at::ScalarType dtype : kDtypes) {
    add_forms(cases, dtype);
    add_reductions(cases, dtype, Op::kAllReduce, Sizes::kEven);
    add_reductions(cases, dtype, Op::kReduceScatter, Sizes::kEven);
    add_reductions(cases, dtype, Op::kReduceScatter, Sizes::kUneven);
  }
  return cases;
}

std::vector<Case> on_device(std::vector<Case> cases, at::DeviceType device) {
  for (Case& test : cases) test.device = device;
  return cases;
}

at::Tensor call(const Case& test, Communicator& comm) {
  const at::Tensor input = input_of(test, comm, comm.rank());
  const int64_t count = comm.size();
  const bool even = test.sizes != Sizes::kUneven;
  const std::vector<int64_t> parts = even ? std::vector<int64_t>{} : part_sizes(test, count);
  const int64_t root = root_of(count);
  const std::string label = describe(test);
  switch (test.op) {
    case Op::kAllReduce:
      if (test.asynchronous) return comm.all_reduce_async(input, test.reduce, label).wait();
      return comm.all_reduce(input, test.reduce, label);
    case Op::kAllGather:
      if (test.asynchronous) return comm.all_gather_async(input, test.dim, label, parts).wait();
      return comm.all_gather(input, test.dim, label, parts);
    case Op::kReduceScatter:
      if (test.asynchronous) {
        return comm.reduce_scatter_async(input, test.dim - 2, test.reduce, label, parts).wait();
      }
      return comm.reduce_scatter(input, test.dim, test.reduce, label, parts);
    case Op::kAllToAll: {
      const auto [sent, received] = even ? Exchange{} : exchange_of(test, comm.rank(), count);
      if (test.asynchronous) return comm.all_to_all_async(input, label, sent, received).wait();
      return comm.all_to_all(input, label, sent, received);
    }
    case Op::kBroadcast:
      return comm.broadcast(input, root, label);
    case Op::kScatter: {
      const int64_t rows = part_sizes(test, count)[static_cast<size_t>(comm.rank())];
      const at::Tensor like = at::empty({rows, kColumns}, input.options());
      return comm.scatter(comm.rank() == root ? input : at::Tensor(), like, root, label, parts);
    }
    case Op::kGather:
      return comm.gather(input, root, label, parts);
    case Op::kRing:
      return ring(test, comm, input);
  }
  return {};
}

std::string check(const Case& test, const Communicator& comm, const at::Tensor& actual) {
  if (test.op == Op::kGather && comm.rank() != root_of(comm.size())) {
    return actual.defined() ? "a result where there is no root" : "";
  }
  std::vector<at::Tensor> inputs;
  for (int64_t i = 0; i < comm.size(); ++i) {
    const at::Tensor input = input_of(test, comm, i).cpu().to(at::kDouble);
    inputs.push_back(test.dim == 0 ? input : input.t());
  }
  const at::Tensor rows = golden_rows(test, inputs, comm.rank());
  const at::Tensor golden = (test.dim == 0 ? rows : rows.t()).to(test.dtype);
  if (actual.scalar_type() != test.dtype) return "dtype " + dtype_name(actual.scalar_type());
  if (!actual.is_contiguous()) return "not contiguous";
  if (actual.sizes() != golden.sizes()) {
    return fmt::format("shape [{}] for [{}]", fmt::join(actual.sizes(), ","),
                       fmt::join(golden.sizes(), ","));
  }
  const at::Tensor differs = actual.cpu().ne(golden);
  if (!differs.any().item<bool>()) return "";
  const at::Tensor first = differs.flatten().nonzero()[0][0];
  const auto value = [&](const at::Tensor& t) { return t.flatten()[first].item<double>(); };
  return fmt::format("element {}: golden {} actual {}", first.item<int64_t>(), value(golden),
                     value(actual.cpu()));
}

}  // namespace shardproof::tests
