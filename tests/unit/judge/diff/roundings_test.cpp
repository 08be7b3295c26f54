#include "sim/judge/diff/roundings.h"

#include <catch2/catch.hpp>

#include "sim/judge/probe/gradient_addends.h"
#include "sim/judge/probe/own_norm.h"
#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;
using Catch::Matchers::Contains;

namespace {

at::Tensor narrow_values(const at::Tensor& values, at::ScalarType narrow) {
  return values.to(narrow).to(at::kFloat);
}

std::string rounded_through(const at::Tensor& values, Precision precision, size_t fewest = 8) {
  return sim::judge::rounded_through(view_of(values), precision, fewest);
}

// A golden of [16, 8] whose members differ from it by 0.001 at most, in relation to its norm.
GoldenTensor scattered_golden(const at::Tensor& value, double factor_scatter = 1e-3) {
  GoldenTensor golden;
  golden.value = view_of(value);
  golden.name = "model.norm.output";
  golden.factor_scatter = factor_scatter;
  golden.square = value.square().sum().item<double>();
  return golden;
}

FactorCheck check(const GoldenTensor& golden, const at::Tensor& actual,
                  Precision precision = Precision::kBFloat16) {
  const IndexPlan plan = make_index_plan(golden.value.sizes(), Layout(), {}, {}, Mesh(), 0);
  const TensorView local = view_of(actual);
  const DiffTask task{local, golden, plan};
  return check_factor(task, precision);
}

}  // namespace

TEST_CASE("float32 values that a narrower dtype can hold were rounded", "[roundings]") {
  const at::Tensor values = numbered({128});
  CHECK_THAT(rounded_through(narrow_values(values, at::kBFloat16), Precision::kBFloat16),
             Contains("no more bits than a bfloat16"));
  CHECK_THAT(rounded_through(narrow_values(values, at::kHalf), Precision::kFloat16),
             Contains("no more bits than a float16"));
  CHECK(rounded_through(values.to(at::kFloat), Precision::kBFloat16) == "");
  CHECK(rounded_through(narrow_values(values, at::kBFloat16), Precision::kFloat32) == "");
  CHECK(rounded_through(values.to(at::kBFloat16), Precision::kBFloat16) ==
        "");  // no bfloat16 has more bits
}

TEST_CASE("a power of two on top of narrow values hides no rounding", "[roundings]") {
  const at::Tensor rounded = narrow_values(numbered({128}), at::kHalf) * 0x1p-30;
  CHECK_THAT(rounded_through(rounded, Precision::kFloat16), Contains("rounded through"));
}

TEST_CASE("one float32 value, or few different ones, tell of no rounding", "[roundings]") {
  at::Tensor values = narrow_values(numbered({128}), at::kBFloat16);
  CHECK(rounded_through(values.slice(0, 0, 7), Precision::kBFloat16) == "");
  CHECK(rounded_through(values.slice(0, 0, 63), Precision::kBFloat16, kFewestOfGradient) == "");
  CHECK(rounded_through(at::ones({1000}, at::kFloat), Precision::kBFloat16) == "");
  values[17] = 0.1f;
  CHECK(rounded_through(values, Precision::kBFloat16) == "");
}

TEST_CASE("a factor on a whole tensor is wrong although no element is", "[roundings]") {
  const GoldenTensor golden = scattered_golden(numbered({16, 8}));
  CHECK(check(golden, tensor_of(golden.value) * 1.0095).problem == "");
  CHECK(check(golden, tensor_of(golden.value) * 1.0095).used == Approx(0.0095 / 0.01));
  CHECK_THAT(check(golden, tensor_of(golden.value) * 0.9895).problem,
             Contains("0.9895 times the golden") && Contains("bfloat16 are within 0.01 of 1"));
  CHECK(check(golden, tensor_of(golden.value) * 0.9895, Precision::kFloat64).problem == "");
}

TEST_CASE("noise of any size is no factor", "[roundings]") {
  const GoldenTensor golden = scattered_golden(numbered({16, 8}));
  at::Tensor noise = numbered({16, 8}, 2) * 0.05;
  const at::Tensor value = tensor_of(golden.value);
  noise -= value * (noise * value).sum() / golden.square;
  CHECK(check(golden, tensor_of(golden.value) + noise).problem == "");
}

TEST_CASE("a piece may be further off than the whole, by the root of its share", "[roundings]") {
  GoldenTensor golden = scattered_golden(numbered({16, 8}));
  golden.square *= 4;  // the piece is a quarter of the golden
  CHECK(check(golden, tensor_of(golden.value) * 1.0195).problem == "");
  CHECK_THAT(check(golden, tensor_of(golden.value) * 1.0205).problem,
             Contains("are within 0.02 of 1"));
}

TEST_CASE("few elements, or members that differ in kind, have no factor", "[roundings]") {
  const GoldenTensor small = scattered_golden(numbered({63}));
  CHECK(check(small, tensor_of(small.value) * 2).problem == "");
  const GoldenTensor open =
      scattered_golden(numbered({16, 8}), std::numeric_limits<double>::infinity());
  CHECK(check(open, tensor_of(open.value) * 2).problem == "");
}

TEST_CASE("errors that many elements of a sample have are wrong although none is", "[roundings]") {
  const at::Tensor value = numbered({2, 16, 8});  // two samples
  GoldenTensor golden;
  golden.value = view_of(value);
  golden.name = "model.norm.output";
  golden.token_dims = true;
  golden.square = value.square().sum().item<double>();
  golden.square_scatters = {1.0, 100.0};  // roots of the sums of squares: 1 and 10
  const IndexPlan first = make_index_plan({1, 16, 8}, Layout(), {}, {}, Mesh(), 0);
  const auto used = [&](double error, Precision precision = Precision::kBFloat16) {
    at::Tensor actual = value.narrow(0, 0, 1).clone();
    actual += error / std::sqrt(128.0);  // of 128 elements
    const TensorView local = view_of(actual);
    return check_squares(DiffTask{local, golden, first}, precision);
  };
  CHECK(used(3.9).problem == "");
  CHECK(used(2.0).used == Approx(0.5).margin(0.01));
  CHECK_THAT(used(4.1).problem,
             Contains("together their errors are 4.1 times the most that runs of one device in "
                      "bfloat16 have"));
  CHECK(used(4.1, Precision::kFloat64).problem == "");
  golden.square_scatters.clear();  // members that differ in kind
  CHECK(used(100).problem == "");
}

namespace {

// The golden of a step of two samples of three tokens, and a weight with a gradient in each row.
struct Addends {
  GoldenRecord golden;
  CaseSpec spec{};
  GradientAddends addends{spec, golden};
  const GoldenTensor& weight(const char* name = "grad.lm_head.weight") const {
    return *golden.find(Phase::kStep, 1, name);
  }
  void see_tokens(const std::vector<int64_t>& tokens, int64_t microbatch = 0) {
    Observation backward = seen("lm_head.grad_input", at::zeros({1, 3, 4}), Phase::kBackward);
    backward.microbatch = microbatch;
    backward.token_map = at::tensor(tokens, at::kLong).view({1, -1});
    addends.see(backward);
  }
};

Addends addends_of(at::Tensor of_tokens) {
  return {.golden =
              golden_from({seen("lm_head.grad_input", std::move(of_tokens), Phase::kBackward),
                           seen("grad.lm_head.weight", numbered({5, 4})),
                           seen("grad.model.norm.weight", numbered({5})),
                           seen("grad.model.layers.0.self_attn.k_proj.weight", numbered({5, 4})),
                           seen("grad.model.layers.0.self_attn.o_proj.weight", numbered({5, 4})),
                           seen("grad.model.embed_tokens.weight", numbered({5, 4}))})};
}

}  // namespace

TEST_CASE("a gradient has several addends where other tokens have gradients too", "[roundings]") {
  Addends step = addends_of(numbered({2, 3, 4}));
  CHECK_FALSE(step.addends.are_several(step.weight()));  // no microbatch was seen
  step.see_tokens({0, 1, 2});
  CHECK(step.addends.are_several(step.weight()));
  step.see_tokens({3, 4, 5}, /*microbatch=*/1);
  CHECK(step.addends.are_several(step.weight()));
}

TEST_CASE("a gradient of one microbatch of all tokens has one addend", "[roundings]") {
  Addends step = addends_of(numbered({2, 3, 4}));
  step.see_tokens({0, 1, 2, 3, 4, 5});
  CHECK_FALSE(step.addends.are_several(step.weight()));
}

TEST_CASE("a head that defers its products rounds their sum once", "[roundings]") {
  Addends step = addends_of(numbered({2, 3, 4}));
  step.see_tokens({0, 1, 2});
  step.spec.parallel.deferred_wgrad = 1;
  CHECK_FALSE(step.addends.are_several(step.weight()));
  CHECK(step.addends.are_several(step.weight("grad.model.layers.0.self_attn.o_proj.weight")));
  step.spec.parallel.gradients = GradientPlace::kMain;
  CHECK(step.addends.are_several(step.weight()));
}

TEST_CASE("tokens without a gradient are no addend", "[roundings]") {
  at::Tensor of_tokens = numbered({2, 3, 4});
  of_tokens[1].zero_();
  Addends step = addends_of(of_tokens);
  step.see_tokens({0, 1, 2});
  CHECK_FALSE(step.addends.are_several(step.weight()));
}

TEST_CASE("an addend that float16 may lose is none", "[roundings]") {
  at::Tensor of_tokens = numbered({2, 3, 4});
  of_tokens[1] *= 1e-4;
  Addends step = addends_of(of_tokens);
  step.see_tokens({0, 1, 2});
  CHECK_FALSE(step.addends.are_several(step.weight()));
}

// In a sample that repeats one token, all values are equal for any weights of the attention, so its
// keys have no gradient. The other sample then is the only addend.
TEST_CASE("a gradient that tokens may leave at 0 may have one addend", "[roundings]") {
  Addends step = addends_of(numbered({2, 3, 4}));
  step.see_tokens({0, 1, 2});
  for (const char* name : {"grad.model.layers.0.self_attn.k_proj.weight", "grad.model.norm.weight",
                           "grad.model.embed_tokens.weight"}) {
    CHECK_FALSE(step.addends.are_several(step.weight(name)));
  }
}

namespace {

// A norm of [6, 16] as a rank computes it: in float32, then rounded once.
struct Norm {
  at::Tensor x, w;
  NormRule rule{.eps = [](const std::string&) { return 1e-5; }};

  explicit Norm(at::ScalarType narrow = at::kBFloat16)
      : x(numbered({6, 16}, 3).to(narrow)), w(numbered({16}, 4).to(narrow)) {}
  at::Tensor normed() const {
    const at::Tensor wide = x.to(at::kFloat);
    return wide * at::rsqrt(wide.square().mean(-1, true) + 1e-5);
  }
  at::Tensor weight() const { return w.to(at::kFloat); }
  std::string problem_of(const at::Tensor& output) const {
    Observation observation = seen("model.norm.output", output, Phase::kForward);
    observation.inputs = {x, w};
    return own_norm_problem(rule, observation, output.contiguous());
  }
};

}  // namespace

TEST_CASE("a norm that is computed in float32 and rounded once follows", "[own norm]") {
  for (const at::ScalarType narrow : {at::kBFloat16, at::kHalf}) {
    const Norm norm(narrow);
    CHECK(norm.problem_of((norm.normed() * norm.weight()).to(narrow)) == "");
  }
}

TEST_CASE("a norm that is rounded twice does not follow", "[own norm]") {
  for (const at::ScalarType narrow : {at::kBFloat16, at::kHalf}) {
    const Norm norm(narrow);
    const at::Tensor twice = norm.normed().to(narrow).to(at::kFloat) * norm.weight();
    CHECK_THAT(norm.problem_of(twice.to(narrow)), Contains("own input of this norm"));
  }
}

TEST_CASE("one element that is one unit off does not follow", "[own norm]") {
  const Norm norm;
  at::Tensor output = (norm.normed() * norm.weight()).to(at::kBFloat16);
  output.view(-1).view(at::kShort)[37] += 1;
  CHECK_THAT(norm.problem_of(output), Contains("1 of 96 elements, the worst at local offset 37"));
}

TEST_CASE("a norm with an eps of another size does not follow", "[own norm]") {
  Norm norm;
  norm.rule.eps = [](const std::string&) { return 1e-2; };
  CHECK(norm.problem_of((norm.normed() * norm.weight()).to(at::kBFloat16)) != "");
}

TEST_CASE("Gemma's norm multiplies by 1 + weight", "[own norm]") {
  Norm norm;
  norm.rule.adds_one = true;
  CHECK(norm.problem_of((norm.normed() * (1 + norm.weight())).to(at::kBFloat16)) == "");
  CHECK(norm.problem_of((norm.normed() * norm.weight()).to(at::kBFloat16)) != "");
}

TEST_CASE("a norm without its inputs is not judged by itself", "[own norm]") {
  const at::Tensor wrong = Norm().x * 7;
  CHECK(own_norm_problem({}, seen("model.norm.output", wrong, Phase::kForward), wrong) == "");
}
