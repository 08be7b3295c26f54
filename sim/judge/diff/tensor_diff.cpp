#include "sim/judge/diff/tensor_diff.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kChunk = 512;  // elements converted to float64 at a time

// The result of one pass over all runs: the largest error, and whether every error is within the
// allowance. NaN is not, and neither is an unequal element where the golden is huge.
struct Errors {
  double largest = 0;
  bool within = true;
};

// GCC and Clang vectors: four independent lanes of four doubles. Without AVX the compiler makes two
// or more instructions of each operation.
template <class Value>
[[gnu::always_inline]] inline void add_lanes(const Value* actual, const double* golden,
                                             int64_t count, double scale, double allowance,
                                             double most, Errors& errors) {
  constexpr int64_t kLanes = 4, kWidth = 4;
  using Values __attribute__((vector_size(kWidth * sizeof(Value)))) = Value;
  using Doubles __attribute__((vector_size(kWidth * sizeof(double)))) = double;
  using Mask __attribute__((vector_size(kWidth * sizeof(double)))) = int64_t;
  constexpr int64_t kNoSign = std::numeric_limits<int64_t>::max();
  const Mask magnitude = {kNoSign, kNoSign, kNoSign, kNoSign};
  const Doubles scales = {scale, scale, scale, scale};
  const Doubles allowances = {allowance, allowance, allowance, allowance};
  const Doubles counted = {most, most, most, most};
  Doubles largest[kLanes] = {};
  Mask within[kLanes] = {~Mask{}, ~Mask{}, ~Mask{}, ~Mask{}};
  int64_t i = 0;
  for (; i + kLanes * kWidth <= count; i += kLanes * kWidth) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      Values a;
      Doubles g;
      std::memcpy(&a, actual + i + lane * kWidth, sizeof(a));
      std::memcpy(&g, golden + i + lane * kWidth, sizeof(g));
      const Doubles wanted = scales * g;
      const Doubles difference = __builtin_convertvector(a, Doubles) - wanted;
      const Doubles error =
          reinterpret_cast<Doubles>(reinterpret_cast<Mask>(difference) & magnitude);
      const Doubles size = reinterpret_cast<Doubles>(reinterpret_cast<Mask>(wanted) & magnitude);
      within[lane] &= (error <= allowances) & (size <= counted);
      largest[lane] = error > largest[lane] ? error : largest[lane];
    }
  }
  for (; i < count; ++i) {
    const double wanted = scale * golden[i];
    const double error = std::fabs(static_cast<double>(actual[i]) - wanted);
    errors.within &= error <= allowance && std::fabs(wanted) <= most;
    if (error > errors.largest) errors.largest = error;
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    for (int64_t j = 0; j < kWidth; ++j) {
      errors.within &= within[lane][j] != 0;
      errors.largest = std::max(errors.largest, largest[lane][j]);
    }
  }
}

// The same loop compiled for the processor at hand. It has no fused multiply-add, so that every
// machine gives the same errors.
#if defined(__x86_64__)
template <class Value>
[[gnu::target("avx2")]] void add_run_avx2(const Value* actual, const double* golden, int64_t count,
                                          double scale, double allowance, double most,
                                          Errors& errors) {
  add_lanes(actual, golden, count, scale, allowance, most, errors);
}
#endif

template <class Value>
void add_run(const Value* actual, const double* golden, int64_t count, double scale,
             double allowance, double most, Errors& errors) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    return add_run_avx2(actual, golden, count, scale, allowance, most, errors);
  }
#endif
  add_lanes(actual, golden, count, scale, allowance, most, errors);
}

// Calls use(doubles, golden offset, local offset, count) for all runs, with float64 actual values.
template <class Value, class Use>
void runs_as_doubles(const Value* data, const IndexPlan& plan, const Use& use) {
  plan.for_each_run([&](int64_t local, int64_t golden, int64_t length) {
    if constexpr (std::is_same_v<Value, double>) {
      use(data + local, golden, local, length);
    } else {
      std::array<double, kChunk> chunk;
      for (int64_t start = 0; start < length; start += kChunk) {
        const int64_t count = std::min(kChunk, length - start);
        for (int64_t i = 0; i < count; ++i) {
          chunk[static_cast<size_t>(i)] = static_cast<double>(data[local + start + i]);
        }
        use(static_cast<const double*>(chunk.data()), golden + start, local + start, count);
      }
    }
  });
}

template <class Use>
void floating_runs(const TensorView& local, const IndexPlan& plan, const Use& use) {
  with_floating_dtype(local.dtype(),
                      [&](auto one) { runs_as_doubles(local.data<decltype(one)>(), plan, use); });
}

int64_t integer_at(const TensorView& tensor, int64_t offset) {
  return with_dtype(tensor.dtype(), [&](auto one) {
    using Value = decltype(one);
    if constexpr (std::is_integral_v<Value>) {
      return static_cast<int64_t>(static_cast<const Value*>(tensor.bytes())[offset]);
    } else {
      SHARDPROOF_ASSERT(false, "an integer tensor of a floating dtype");
      return int64_t{0};
    }
  });
}

// Of golden times scale: a larger element must be equal.
double most_counted(const DiffTask& task) {
  return std::max(kLargestCounted, std::fabs(task.scale) * task.golden.scale);
}

// Inspects one element after the other and keeps the worst.
class Inspector {
 public:
  Inspector(const DiffTask& task, DiffResult& result)
      : task_(task), result_(result), golden_(task.golden.value.data<double>()) {
    if (task.padding_is_zero && task.golden.value.dim() == 2) {
      row_size_ = task.golden.value.size(1);
      zero_tails_ = zero_tails(task.golden);
    }
  }

  void add(double actual, int64_t golden_offset, int64_t local_offset) {
    const double golden = task_.scale * golden_[golden_offset];
    if (std::isfinite(golden) && std::isfinite(actual)) {
      golden_square_ += golden * golden;
      product_ += golden * actual;
      actual_square_ += actual * actual;
    } else {
      finite_ = false;
    }
    double error = std::fabs(actual - golden);
    double allowance = std::fabs(task_.scale) * task_.allowance;
    if (must_be_equal(golden, golden_offset)) {
      allowance = 0;
      if (actual == golden || (std::isnan(actual) && std::isnan(golden))) error = 0;
    } else if (task_.added && !(error <= allowance)) {
      allowance += std::fabs(task_.scale) * task_.added->at(golden_offset);
    }
    const bool good = error <= allowance;
    const double ratio = error == 0 ? 0 : good ? error / allowance : ratio_beyond(error, allowance);
    if (!good) ++result_.bad_count;
    const bool was_wrong = result_.bad_count > (good ? 0 : 1);
    const double worse = result_.worst_ratio * (was_wrong ? kEqualRatios : 1);
    if (result_.worst_local >= 0 && ratio <= worse) return;
    result_.worst_ratio = ratio;
    result_.worst_error = error;
    result_.allowance = allowance;
    result_.golden_value = golden;
    result_.actual_value = actual;
    result_.worst_local = local_offset;
    result_.worst_golden = golden_offset;
  }

  void finish() {
    if (golden_square_ > 0) result_.factor = product_ / golden_square_;
    const double left = actual_square_ - 2 * result_.factor * product_ +
                        result_.factor * result_.factor * golden_square_;
    result_.factor_residual = !finite_             ? std::numeric_limits<double>::infinity()
                              : actual_square_ > 0 ? std::sqrt(std::max(left, 0.0) / actual_square_)
                                                   : 0;
  }

 private:
  static double ratio_beyond(double error, double allowance) {
    if (std::isnan(error) || allowance == 0) return std::numeric_limits<double>::infinity();
    return error / allowance;
  }
  bool must_be_equal(double golden, int64_t offset) const {
    if (!(std::fabs(golden) <= most_counted(task_))) return true;
    if (zero_tails_.empty() || golden != 0) return false;
    const int64_t column = offset % row_size_;
    return column == 0 || column >= zero_tails_[static_cast<size_t>(offset / row_size_)];
  }

  const DiffTask& task_;
  DiffResult& result_;
  const double* golden_;
  std::vector<int64_t> zero_tails_;
  int64_t row_size_ = 1;
  double golden_square_ = 0, product_ = 0, actual_square_ = 0;
  bool finite_ = true;
};

void inspect(const DiffTask& task, DiffResult& result) {
  Inspector inspector(task, result);
  floating_runs(task.local, task.plan,
                [&](const double* actual, int64_t golden, int64_t local, int64_t count) {
                  for (int64_t i = 0; i < count; ++i) {
                    inspector.add(actual[i], golden + i, local + i);
                  }
                });
  inspector.finish();
}

void compare_integers(const DiffTask& task, DiffResult& result) {
  task.plan.for_each_run([&](int64_t local, int64_t golden, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      const int64_t actual = integer_at(task.local, local + i);
      const int64_t due = integer_at(task.golden.value, golden + i);
      if (actual == due) continue;
      const double error = std::fabs(static_cast<double>(actual) - static_cast<double>(due));
      if (++result.bad_count > 1 && error <= result.worst_error) continue;
      result.worst_ratio = std::numeric_limits<double>::infinity();
      result.worst_error = error;
      result.golden_value = static_cast<double>(due);
      result.actual_value = static_cast<double>(actual);
      result.worst_local = local + i;
      result.worst_golden = golden + i;
    }
  });
}

}  // namespace

std::vector<int64_t> zero_tails(const GoldenTensor& golden) {
  const int64_t rows = golden.value.size(0);
  const int64_t columns = golden.value.size(1);
  const double* values = golden.value.data<double>();
  std::vector<int64_t> tails(static_cast<size_t>(rows), columns);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t& tail = tails[static_cast<size_t>(row)];
    while (tail > 0 && values[row * columns + tail - 1] == 0) --tail;
  }
  return tails;
}

DiffResult diff(const DiffTask& task) {
  DiffResult result;
  if (!is_floating(task.local.dtype())) {
    compare_integers(task, result);
    return result;
  }
  const double allowance = std::fabs(task.scale) * task.allowance;
  const double* golden = task.golden.value.data<double>();
  const double most = most_counted(task);
  Errors errors;
  const auto add = [&](const auto* actual, int64_t offset, int64_t, int64_t count) {
    add_run(actual, golden + offset, count, task.scale, allowance, most, errors);
  };
  if (task.local.dtype() == Dtype::kFloat32) {  // converted in the loop
    const float* actual = task.local.data<float>();
    task.plan.for_each_run([&](int64_t local, int64_t offset, int64_t length) {
      add(actual + local, offset, local, length);
    });
  } else {
    floating_runs(task.local, task.plan, add);
  }
  if (!errors.within || task.padding_is_zero) {
    inspect(task, result);
    return result;
  }
  result.allowance = allowance;
  result.worst_error = errors.largest;
  result.worst_ratio = result.worst_error == 0 ? 0 : result.worst_error / allowance;
  return result;
}

void take_result(const DiffResult& result, const IndexPlan& plan, ResultRow& row) {
  row.bad_count = result.bad_count;
  row.worst_ratio = result.worst_ratio;
  row.worst_error = result.worst_error;
  row.allowance = result.allowance;
  row.outcome = result.bad_count > 0 ? Outcome::kMismatch
                : row.reason.empty() ? Outcome::kMatch
                                     : Outcome::kUnresolved;
  if (result.bad_count == 0) return;
  row.golden_value = result.golden_value;
  row.actual_value = result.actual_value;
  row.factor = result.factor;
  row.factor_residual = result.factor_residual;
  row.worst_global_index = plan.global_index(result.worst_golden);
  row.worst_local_index = unravel(plan.local_offset(result.worst_local), plan.local_shape);
}

AlongGolden along_golden(const DiffTask& task) {
  AlongGolden sums;
  const double* full = task.golden.value.data<double>();
  floating_runs(task.local, task.plan,
                [&](const double* values, int64_t offset, int64_t, int64_t count) {
                  for (int64_t i = 0; i < count; ++i) {
                    const double due = task.scale * full[offset + i];
                    sums.error += (values[i] - due) * due;
                    sums.square += due * due;
                  }
                });
  return sums;
}

std::vector<PartErrors> errors_of_parts(const DiffTask& task, int64_t parts) {
  std::vector<PartErrors> errors(static_cast<size_t>(parts));
  const double* full = task.golden.value.data<double>();
  const int64_t length = task.golden.value.numel() / parts;
  floating_runs(task.local, task.plan,
                [&](const double* values, int64_t offset, int64_t, int64_t count) {
                  for (int64_t i = 0; i < count;) {
                    PartErrors& part = errors[static_cast<size_t>((offset + i) / length)];
                    const int64_t end = std::min(count, i + length - (offset + i) % length);
                    part.count += end - i;
                    double square = 0, golden = 0;
                    for (; i < end; ++i) {
                      const double due = task.scale * full[offset + i], error = values[i] - due;
                      square += error * error;
                      golden += due * due;
                    }
                    part.square += square;
                    part.golden += golden;
                  }
                });
  return errors;
}

void copy_both(const DiffTask& task, std::vector<double>& actual, std::vector<double>& golden) {
  actual.assign(static_cast<size_t>(task.local.numel()), 0);
  golden.assign(static_cast<size_t>(task.local.numel()), 0);
  if (!is_floating(task.local.dtype())) {
    task.plan.for_each_run([&](int64_t local, int64_t offset, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        actual[static_cast<size_t>(local + i)] =
            static_cast<double>(integer_at(task.local, local + i));
        golden[static_cast<size_t>(local + i)] =
            static_cast<double>(integer_at(task.golden.value, offset + i));
      }
    });
    return;
  }
  const double* full = task.golden.value.data<double>();
  floating_runs(task.local, task.plan,
                [&](const double* values, int64_t offset, int64_t local, int64_t count) {
                  for (int64_t i = 0; i < count; ++i) {
                    actual[static_cast<size_t>(local + i)] = values[i];
                    golden[static_cast<size_t>(local + i)] = task.scale * full[offset + i];
                  }
                });
}

}  // namespace shardproof::sim::judge
