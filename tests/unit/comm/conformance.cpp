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

// The number of rows that rank i sends to rank j in an all_to_all.
int64_t rows_between(const Case& test, int64_t from, int64_t to) {
  if (test.sizes == Sizes::kEven) return 2;
  return test.sizes == Sizes::kEmpty ? 0 : (from + 2 * to) % 4;
}

std::vector<int64_t> sent_rows(const Case& test, int64_t from, int64_t count) {
  std::vector<int64_t> rows;
  for (int64_t to = 0; to < count; ++to) rows.push_back(rows_between(test, from, to));
  return rows;
}

std::vector<int64_t> received_rows(const Case& test, int64_t to, int64_t count) {
  std::vector<int64_t> rows;
  for (int64_t from = 0; from < count; ++from) rows.push_back(rows_between(test, from, to));
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
  if (test.op == Op::kAllToAll) rows = total(sent_rows(test, i, count));
  if (test.dim == 0) return {rows, kColumns};
  return {kColumns, rows};
}

// Small whole numbers, so that sums and products of seven ranks are exact in every dtype; each
// position and rank has a different one.
double value_at(const Case& test, int64_t global_rank, int64_t index) {
  const int64_t mixed = index * 7 + global_rank * 13 + index * global_rank;
  if (test.dtype == at::kBool) return static_cast<double>(mixed % 3 == 0);
  if (reduces(test.op) && test.reduce == ReduceOp::kProduct) {
    const double sign = mixed % 5 == 0 && test.dtype != at::kByte ? -1 : 1;
    return sign * static_cast<double>(1 + mixed % 2);
  }
  return static_cast<double>(mixed % 19) - (test.dtype == at::kByte ? 0 : 9);
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
  at::Tensor values = at::empty(shape, at::kDouble);
  double* data = values.data_ptr<double>();
  const int64_t rank = comm.ranks()[static_cast<size_t>(i)];
  for (int64_t index = 0; index < values.numel(); ++index)
    data[index] = value_at(test, rank, index);
  const bool can_expand = test.memory != Memory::kExpanded || shape[1] > 0;
  return with_memory(values.to(test.dtype).to(test.device),
                     can_expand ? test.memory : Memory::kContiguous);
}

// A matrix of doubles, so that the golden uses no tensor library.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values;
  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
};

Matrix matrix(int64_t rows, int64_t columns) {
  return {rows, columns, std::vector<double>(static_cast<size_t>(rows * columns))};
}

Matrix matrix_of(const at::Tensor& tensor) {
  Matrix out = matrix(tensor.size(0), tensor.size(1));
  const at::Tensor wide = tensor.cpu().to(at::kDouble).contiguous();
  std::copy_n(wide.data_ptr<double>(), wide.numel(), out.values.begin());
  return out;
}

Matrix flipped(const Matrix& from) {
  Matrix out = matrix(from.columns, from.rows);
  for (int64_t r = 0; r < from.rows; ++r) {
    for (int64_t c = 0; c < from.columns; ++c) out.at(c, r) = from.at(r, c);
  }
  return out;
}

Matrix rows_of(const Matrix& from, int64_t start, int64_t count) {
  Matrix out = matrix(count, from.columns);
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < from.columns; ++c) out.at(r, c) = from.at(start + r, c);
  }
  return out;
}

void append_rows(Matrix& to, const Matrix& from) {
  to.columns = from.columns;
  to.rows += from.rows;
  to.values.insert(to.values.end(), from.values.begin(), from.values.end());
}

double rounded(double value, at::ScalarType dtype) {
  if (dtype == at::kFloat) return static_cast<float>(value);
  if (dtype == at::kHalf) return static_cast<at::Half>(static_cast<float>(value));
  if (dtype == at::kBFloat16) return static_cast<at::BFloat16>(static_cast<float>(value));
  return value;
}

double reduce_values(const Case& test, const std::vector<double>& values) {
  double result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const double value = values[i];
    result = test.reduce == ReduceOp::kMax       ? std::max(result, value)
             : test.reduce == ReduceOp::kMin     ? std::min(result, value)
             : test.reduce == ReduceOp::kProduct ? result * value
                                                 : result + value;
  }
  if (test.dtype == at::kBool) return static_cast<double>(result != 0);
  if (test.dtype == at::kByte) return static_cast<double>(static_cast<uint8_t>(result));
  if (test.reduce == ReduceOp::kAvg) result /= static_cast<double>(values.size());
  return rounded(result, test.dtype);
}

Matrix reduce_all(const Case& test, const std::vector<Matrix>& inputs) {
  Matrix out = inputs[0];
  for (size_t k = 0; k < out.values.size(); ++k) {
    std::vector<double> values;
    for (const Matrix& input : inputs) values.push_back(input.values[k]);
    out.values[k] = reduce_values(test, values);
  }
  return out;
}

// Inputs and result have the cut dim in front.
Matrix golden_rows(const Case& test, const std::vector<Matrix>& inputs, int64_t own) {
  const auto count = static_cast<int64_t>(inputs.size());
  const std::vector<int64_t> parts = part_sizes(test, count);
  const int64_t before = total({parts.begin(), parts.begin() + own});
  const int64_t mine = parts[static_cast<size_t>(own)];
  const auto root = static_cast<size_t>(root_of(count));
  Matrix out;
  switch (test.op) {
    case Op::kAllReduce:
      return reduce_all(test, inputs);
    case Op::kReduceScatter:
      return rows_of(reduce_all(test, inputs), before, mine);
    case Op::kBroadcast:
      return inputs[root];
    case Op::kScatter:
      return rows_of(inputs[root], before, mine);
    case Op::kRing:
      return inputs[static_cast<size_t>((own + count - 1) % count)];
    case Op::kAllGather:
    case Op::kGather:
      for (const Matrix& input : inputs) append_rows(out, input);
      return out;
    case Op::kAllToAll:
      for (int64_t from = 0; from < count; ++from) {
        const std::vector<int64_t> sent = sent_rows(test, from, count);
        const int64_t start = total({sent.begin(), sent.begin() + own});
        append_rows(
            out, rows_of(inputs[static_cast<size_t>(from)], start, sent[static_cast<size_t>(own)]));
      }
      return out;
  }
  return out;
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

// Adds every form of each op in one dtype.
void add_forms(std::vector<Case>& cases, at::ScalarType dtype) {
  for (const Op op : kOps) {
    for (const Memory memory :
         {Memory::kContiguous, Memory::kTransposed, Memory::kStrided, Memory::kExpanded}) {
      cases.push_back({.op = op, .dtype = dtype, .memory = memory});
    }
    cases.push_back({.op = op, .dtype = dtype, .sizes = Sizes::kEmpty});
    if (has_async(op)) {
      cases.push_back({.op = op, .dtype = dtype, .asynchronous = true});
      cases.push_back({.op = op, .dtype = dtype, .memory = Memory::kStrided, .asynchronous = true});
    }
    for (const int64_t dim : {0, 1}) {
      if (dim == 1 && !has_dim(op)) continue;
      if (dim == 1) cases.push_back({.op = op, .dtype = dtype, .dim = 1});
      if (!has_parts(op)) continue;
      for (const bool asynchronous : {false, true}) {
        if (asynchronous && !has_async(op)) continue;
        cases.push_back({.op = op,
                         .dtype = dtype,
                         .sizes = Sizes::kUneven,
                         .dim = dim,
                         .asynchronous = asynchronous});
      }
      cases.push_back({.op = op,
                       .dtype = dtype,
                       .memory = Memory::kTransposed,
                       .sizes = Sizes::kUneven,
                       .dim = dim});
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

std::vector<Case> thin_cases() {
  std::vector<Case> cases;
  add_forms(cases, at::kDouble);
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    const at::ScalarType dtype = kDtypes[i];
    add_reductions(cases, dtype, Op::kAllReduce, Sizes::kEven);
    if (!at::isIntegralType(dtype, true)) {
      cases.push_back({.op = Op::kReduceScatter, .dtype = dtype, .sizes = Sizes::kUneven});
    }
    cases.push_back({.op = kOps[(i + 1) % kOps.size()], .dtype = dtype});
    cases.push_back({.op = Op::kAllGather, .dtype = dtype});
    cases.push_back({.op = Op::kAllToAll, .dtype = dtype});
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
      const auto sent = even ? std::vector<int64_t>{} : sent_rows(test, comm.rank(), count);
      const auto received = even ? std::vector<int64_t>{} : received_rows(test, comm.rank(), count);
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
  std::vector<Matrix> inputs;
  for (int64_t i = 0; i < comm.size(); ++i) {
    const Matrix input = matrix_of(input_of(test, comm, i));
    inputs.push_back(test.dim == 0 ? input : flipped(input));
  }
  const Matrix rows = golden_rows(test, inputs, comm.rank());
  const Matrix golden = test.dim == 0 ? rows : flipped(rows);
  if (actual.scalar_type() != test.dtype) return "dtype " + dtype_name(actual.scalar_type());
  if (!actual.is_contiguous()) return "not contiguous";
  if (actual.sizes() != at::IntArrayRef({golden.rows, golden.columns})) {
    return fmt::format("shape [{}] for [{},{}]", fmt::join(actual.sizes(), ","), golden.rows,
                       golden.columns);
  }
  const Matrix got = matrix_of(actual);
  for (size_t k = 0; k < golden.values.size(); ++k) {
    if (!(got.values[k] == golden.values[k])) {
      return fmt::format("element {}: golden {} actual {}", k, golden.values[k], got.values[k]);
    }
  }
  return "";
}

}  // namespace shardproof::tests
