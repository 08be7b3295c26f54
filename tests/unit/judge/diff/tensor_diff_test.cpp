#include "sim/judge/diff/tensor_diff.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

GoldenTensor golden_of(const at::Tensor& value) {
  GoldenTensor golden;
  golden.value = view_of(value);
  golden.name = "t";
  return golden;
}

DiffResult diff_whole(const at::Tensor& golden, const at::Tensor& actual, double allowance,
                      double scale = 1, bool padding_is_zero = false) {
  const GoldenTensor tensor = golden_of(golden);
  const IndexPlan plan = make_index_plan(golden.sizes().vec(), Layout(), {}, {}, Mesh(), 0);
  const TensorView local = view_of(actual);
  DiffTask task{local, tensor, plan, scale, allowance};
  task.padding_is_zero = padding_is_zero;
  return diff(task);
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("an error of the allowance is right, the next larger double is wrong", "[diff]") {
  for (const int64_t size : {1, 2, 15, 16, 17, 39, 64}) {  // inside the vector loop and after it
    const at::Tensor golden = at::zeros({size}, at::kDouble);
    for (int64_t place = 0; place < size; ++place) {
      at::Tensor actual = golden.clone();
      actual[place] = 0.25;
      CHECK(diff_whole(golden, actual, 0.25).bad_count == 0);
      CHECK(diff_whole(golden, actual, 0.25).worst_ratio == 1);
      actual[place] = -std::nextafter(0.25, 1.0);
      const DiffResult wrong = diff_whole(golden, actual, 0.25);
      CHECK(wrong.bad_count == 1);
      CHECK(wrong.worst_local == place);
      CHECK(wrong.worst_golden == place);
      CHECK(wrong.actual_value == -std::nextafter(0.25, 1.0));
    }
  }
}

TEST_CASE("NaN is wrong at every place, whatever the allowance", "[diff]") {
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  for (int64_t place = 0; place < 37; ++place) {
    const at::Tensor golden = numbered({37});
    at::Tensor actual = golden.to(dtype, false, /*copy=*/true);
    actual[place] = kNan;
    const DiffResult result = diff_whole(golden, actual, 1e300);
    CHECK(result.bad_count == 1);
    CHECK(result.worst_local == place);
    CHECK(std::isinf(result.worst_ratio));
  }
}

TEST_CASE("of wrong elements that differ by roundings the first is named", "[diff]") {
  const at::Tensor golden = numbered({3, 5});
  at::Tensor actual = golden.clone();
  actual[0][1] += 0.1;
  actual[1][2] += 0.5;
  actual[2][4] += 0.5 * (1 + 1e-12);
  CHECK(diff_whole(golden, actual, 0.05).worst_local == 7);
  actual[2][4] += 0.001;
  CHECK(diff_whole(golden, actual, 0.05).worst_local == 14);
  // A wrong element is never hidden by a right one.
  CHECK(diff_whole(golden.flatten()[0] * at::ones({2}, at::kDouble),
                   golden.flatten()[0] + at::tensor({0.5, 0.5 * (1 + 1e-12)}, at::kDouble), 0.5)
            .worst_local == 1);
}

TEST_CASE("a float32 error is found where it is and measured in float64", "[diff]") {
  const at::Tensor golden =
      at::arange(37, at::kDouble) * 0.5 + 1e-12;  // float32 drops the last term
  const at::Tensor near = golden.to(at::kFloat);
  CHECK(diff_whole(golden, near, 1.5e-12).bad_count == 0);
  CHECK(diff_whole(golden, near, 1.5e-12).worst_error == Approx(1e-12).epsilon(0.01));
  CHECK(diff_whole(golden, near, 0.5e-12).bad_count == 36);  // all except 0 + 1e-12
  for (int64_t place = 0; place < 37; ++place) {
    at::Tensor actual = near.clone();
    actual[place] = -1.0f;
    const DiffResult wrong = diff_whole(golden, actual, 0.25);
    CHECK(wrong.bad_count == 1);
    CHECK(wrong.worst_local == place);
    CHECK(wrong.worst_error == 1 + golden[place].item<double>());
  }
}

TEST_CASE("non-finite and huge golden elements must be equal", "[diff]") {
  const at::Tensor golden = at::tensor({kInf, -kInf, kNan, 1e31, 2.0}, at::kDouble);
  CHECK(diff_whole(golden, golden.clone(), 1.0).bad_count == 0);
  for (int64_t place = 0; place < 4; ++place) {
    at::Tensor actual = golden.clone();
    actual[place] = 0.0;
    CHECK(diff_whole(golden, actual, 1e40).bad_count == 1);
  }
  at::Tensor swapped = golden.clone();
  swapped[0] = -kInf;
  CHECK(diff_whole(golden, swapped, 1.0).bad_count == 1);
  at::Tensor near = golden.clone();
  near[3] = std::nextafter(1e31, 0.0);
  CHECK(diff_whole(golden, near, 1e30).bad_count == 1);
}

TEST_CASE("a huge golden element must be equal even where the error is allowed", "[diff]") {
  for (const int64_t size : {1, 15, 16, 39}) {  // inside the vector loop and after it
    for (int64_t place = 0; place < size; ++place) {
      at::Tensor golden = at::ones({size}, at::kDouble);
      golden[place] = -3e30;
      CHECK(diff_whole(golden, golden.clone(), 1e20).bad_count == 0);
      at::Tensor actual = golden.clone();
      actual[place] = -3e30 - 1e15;
      const DiffResult wrong = diff_whole(golden, actual, 1e20);
      CHECK(wrong.bad_count == 1);
      CHECK(wrong.worst_local == place);
      golden[place] = 1e30;  // counts, so that it has the allowance
      actual[place] = 1e30 + 1e15;
      CHECK(diff_whole(golden, actual, 1e20).bad_count == 0);
    }
  }
}

TEST_CASE("a huge golden element within the golden's scale has the allowance", "[diff]") {
  for (const int64_t size : {1, 39}) {
    at::Tensor golden = at::ones({size}, at::kDouble) * 2e31;
    golden[size - 1] = -2.75e50;
    const GoldenTensor tensor = [&] {
      GoldenTensor full = golden_of(golden);
      full.scale = 2.75e50;
      return full;
    }();
    const IndexPlan plan = make_index_plan({size}, Layout(), {}, {}, Mesh(), 0);
    const auto bad = [&](double factor) {
      const at::Tensor actual = golden * factor;
      const TensorView local = view_of(actual);
      return diff(DiffTask{local, tensor, plan, 1, 2.75e40}).bad_count;
    };
    CHECK(bad(1 + 1e-13) == 0);
    CHECK(bad(1 + 1e-9) == 1);
  }
}

TEST_CASE("an infinite actual value is wrong where the golden is finite", "[diff]") {
  const at::Tensor golden = numbered({5});
  at::Tensor actual = golden.clone();
  actual[4] = kInf;
  CHECK(diff_whole(golden, actual, 1e300).bad_count == 1);
}

TEST_CASE("with no allowance zero equals both zeros and nothing else", "[diff]") {
  const at::Tensor golden = at::zeros({3}, at::kDouble);
  CHECK(diff_whole(golden, at::tensor({0.0, -0.0, 0.0}, at::kDouble), 0).bad_count == 0);
  CHECK(diff_whole(golden, at::tensor({0.0, 5e-324, 0.0}, at::kDouble), 0).bad_count == 1);
}

TEST_CASE("integers of every width must be equal", "[diff]") {
  for (const at::ScalarType dtype : {at::kLong, at::kInt, at::kByte, at::kBool}) {
    const at::Tensor golden = at::tensor({0, 1, 1, 0}, at::kLong).to(dtype);
    CHECK(diff_whole(golden, golden.clone(), 0).bad_count == 0);
    at::Tensor actual = golden.clone();
    actual[2] = 0;
    const DiffResult result = diff_whole(golden, actual, 0);
    CHECK(result.bad_count == 1);
    CHECK(result.worst_local == 2);
    CHECK(result.golden_value == 1);
    CHECK(result.actual_value == 0);
  }
  const at::Tensor large = at::tensor({int64_t{1} << 60}, at::kLong);
  CHECK(diff_whole(large, large + 1, 0).bad_count == 1);  // equal as doubles
}

TEST_CASE("lower dtypes are compared by their exact values", "[diff]") {
  const at::Tensor golden = numbered({700});  // more than one chunk
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor actual = golden.to(dtype);
    const double error = (actual.to(at::kDouble) - golden).abs().max().item<double>();
    CHECK(diff_whole(golden, actual, error).bad_count == 0);
    CHECK(diff_whole(golden, actual, std::nextafter(error, 0.0)).bad_count >= 1);
  }
}

TEST_CASE("a declared scale multiplies golden and allowance", "[diff]") {
  const at::Tensor golden = numbered({9});
  CHECK(diff_whole(golden, golden * 4, 1e-12, 4).bad_count == 0);
  CHECK(diff_whole(golden, golden, 1e-12, 4).bad_count == 9);
  CHECK(diff_whole(golden, golden * 4 + 3.9e-12, 1e-12, 4).bad_count == 0);
  CHECK(diff_whole(golden, golden * 4 + 4.1e-12, 1e-12, 4).bad_count == 9);
}

TEST_CASE("the factor that explains a tensor is fitted with what it leaves over", "[diff]") {
  const at::Tensor golden = numbered({50});
  const DiffResult twice = diff_whole(golden, golden * 2, 1e-10);
  CHECK(twice.factor == Approx(2));
  CHECK(twice.factor_residual < 1e-7);
  at::Tensor other = golden * 2;
  other[3] += 1;
  CHECK(diff_whole(golden, other, 1e-10).factor_residual > 1e-3);
}

TEST_CASE("padding positions of logprobs must be exactly zero", "[diff]") {
  const at::Tensor golden =
      at::tensor({0.0, -1.0, -2.0, 0.0, 0.0, 0.0, -1.5, 0.0, -0.5, -0.25}, at::kDouble)
          .view({2, 5});
  const auto wrong = [&](int64_t row, int64_t column) {
    at::Tensor actual = golden.clone();
    actual[row][column] += 1e-15;
    return diff_whole(golden, actual, 1e-10, 1, true).bad_count;
  };
  CHECK(zero_tails(golden_of(golden)) == std::vector<int64_t>{3, 5});
  CHECK(wrong(0, 0) == 1);  // position 0
  CHECK(wrong(0, 3) == 1);  // padding
  CHECK(wrong(0, 4) == 1);
  CHECK(wrong(1, 0) == 1);
  CHECK(wrong(0, 1) == 0);
  CHECK(wrong(1, 2) == 0);  // a zero between scored positions is a probability of 1
}

TEST_CASE("only elements beyond the common allowance ask for their own", "[diff]") {
  CaseSpec spec = spec_of(1, 1);
  spec.optimizer.lr = 0.5;
  spec.optimizer.eps = 0;
  const auto golden = golden_from({seen("grad.w", at::tensor({1.0, 0.0}, at::kDouble)),
                                   seen("param.w", at::tensor({1.0, 1.0}, at::kDouble))});
  const GoldenTensor& param = golden.tensors()[1];
  const auto added = FreeRunningAllowance::of(spec, golden, param);
  const IndexPlan plan = make_index_plan({2}, Layout(), {}, {}, Mesh(), 0);
  const auto count_bad = [&](double first, double second) {
    const TensorView actual = TensorView::of(std::vector{1.0 + first, 1.0 + second}, {2});
    return diff({actual, param, plan, 1, 1e-10, &*added}).bad_count;
  };
  CHECK(count_bad(0, 0.999) == 0);  // no gradient: 2 * lr
  CHECK(count_bad(0, 1.001) == 1);
  CHECK(count_bad(1.4e-10, 0) == 0);  // 1e-10 + 0.5 * 1e-10
  CHECK(count_bad(1.6e-10, 0) == 1);
}
