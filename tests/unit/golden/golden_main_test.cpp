#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"
#include "sim/case/runners.h"
#include "tensor/aten_view.h"

namespace shardproof::golden {
namespace {

sim::CaseSpec small() {
  sim::CaseSpec spec;
  spec.name = "small";
  spec.model = nlohmann::json::parse(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 29,
    "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 4, "attention_bias": true})");
  spec.seed = 11;
  spec.steps = 2;
  spec.data.batch_size = 3;
  spec.data.seq_len = 7;
  spec.data.lengths = {7, 2, 5};
  spec.optimizer.lr = 0.01;
  return spec;
}

sim::GoldenRecord run(const sim::CaseSpec& spec) {
  const int fd = ::memfd_create("golden", 0);
  REQUIRE(fd >= 0);
  const GoldenSize size = golden_main(spec, Members::kDue, fd);
  sim::GoldenRecord record = sim::GoldenRecord::from_fd(fd);
  ::close(fd);
  CHECK(size.tensors == std::ssize(record.tensors()));
  CHECK(size.seconds > 0);
  CHECK(size.bytes > 0);
  return record;
}

at::Tensor value(const sim::GoldenRecord& record, Phase phase, int64_t step,
                 const std::string& name) {
  INFO(name);
  const sim::GoldenTensor* found = record.find(phase, step, name);
  REQUIRE(found != nullptr);
  return tensor_of(found->value);
}

std::vector<std::string> names_of(const sim::GoldenRecord& record, Phase phase, int64_t step) {
  std::vector<std::string> names;
  for (const sim::GoldenTensor& tensor : record.tensors()) {
    if (tensor.phase == phase && tensor.step == step) names.push_back(tensor.name);
  }
  return names;
}

// A run in float16 whose loss scale begins at `scale` and falls where a step overflows.
sim::CaseSpec falling_from(double scale, int64_t steps) {
  sim::CaseSpec spec = small();
  spec.record_activations = false;
  spec.precision = Precision::kFloat16;
  spec.steps = steps;
  spec.optimizer.lr = 1e-7;  // so that all steps have nearly the same gradients
  spec.loss_scale.init_scale = scale;
  spec.loss_scale.backoff_factor = 0.75;
  return spec;
}

std::vector<int64_t> parted_skips(const sim::GoldenRecord& record) {
  const auto found = record.metadata().find(sim::kPartedSkips);
  std::istringstream text(found == record.metadata().end() ? "" : found->second);
  return {std::istream_iterator<int64_t>(text), {}};
}

}  // namespace

TEST_CASE("A golden holds every phase in the order of the run", "[golden]") {
  const sim::GoldenRecord record = run(small());
  const std::vector<std::string> forward = names_of(record, Phase::kForward, 1);
  CHECK(forward.front() == "model.embed_tokens.output");
  CHECK(std::vector<std::string>(forward.end() - 3, forward.end()) ==
        std::vector<std::string>{"lm_head.output", "logprobs", "loss"});
  CHECK(names_of(record, Phase::kForward, 2) == forward);
  CHECK(names_of(record, Phase::kBackward, 1).front() == "lm_head.grad_input");

  const std::vector<std::string> step = names_of(record, Phase::kStep, 2);
  CHECK(step.front() == "grad.lm_head.weight");
  const auto norm = std::find(step.begin(), step.end(), "grad_norm");
  REQUIRE(norm != step.end());
  CHECK(std::vector<std::string>(norm - 1, norm + 4) ==
        std::vector<std::string>{
            "grad.model.embed_tokens.weight", "grad_norm", "exp_avg.model.embed_tokens.weight",
            "exp_avg_sq.model.embed_tokens.weight", "param.model.embed_tokens.weight"});
  const auto last = std::find_if(step.rbegin(), step.rend(), [](const std::string& name) {
    return !name.starts_with("metric.");  // metrics are last
  });
  CHECK(*last == "param.lm_head.weight");
  CHECK(names_of(record, Phase::kStep, 3).empty());
}

TEST_CASE("The ensemble of a lower precision scatters around the float64 values", "[golden]") {
  const auto [precision, low, high] = GENERATE(
      table<std::string, double, double>({{"float32", 1e-10, 1e-4}, {"bfloat16", 1e-4, 0.2}}));
  sim::CaseSpec spec = small();
  const sim::GoldenRecord exact = run(spec);
  spec.precision = enum_of<Precision>(precision);
  const sim::GoldenRecord record = run(spec);
  REQUIRE(record.tensors().size() == exact.tensors().size());
  for (size_t i = 0; i < record.tensors().size(); ++i) {
    CHECK(record.tensors()[i].name == exact.tensors()[i].name);
    CHECK(equal(record.tensors()[i].value, exact.tensors()[i].value));
  }
  for (const char* name : {"logprobs", "lm_head.output", "model.layers.0.mlp_residual.output"}) {
    const sim::GoldenTensor* found = record.find(Phase::kForward, 1, name);
    REQUIRE(found != nullptr);
    INFO(name << " " << found->scatter << " of " << found->scale);
    CHECK(found->scatter > low * found->scale);
    CHECK(found->scatter < high * found->scale);
  }
}

TEST_CASE("A float16 golden names the steps whose skip depends on the parts of a sum", "[golden]") {
  // The scale falls to where no sample overflows alone, and then to where their sum does not.
  sim::CaseSpec spec = falling_from(0x1p24, 24);
  const sim::GoldenRecord falling = run(spec);
  const std::vector<int64_t> parted = parted_skips(falling);
  REQUIRE_FALSE(parted.empty());
  CHECK(std::ssize(parted) < 6);
  const auto skipped = [&](int64_t step) {
    return value(falling, Phase::kStep, step, "metric.skipped").item<double>() == 1;
  };
  for (const int64_t step : parted) CHECK(skipped(step));
  CHECK(skipped(parted.front() - 1));
  CHECK_FALSE(skipped(parted.back() + 1));
  CHECK(parted_skips(run(falling_from(1, 4))).empty());  // which never falls
  spec.precision = Precision::kBFloat16;                 // which never skips
  spec.steps = 4;
  CHECK(parted_skips(run(spec)).empty());
}

TEST_CASE("A gradient of few positions is parted where no position overflows alone", "[golden]") {
  const int64_t scored = GENERATE(1, 2);
  sim::CaseSpec spec = falling_from(0x1p24, 30);
  spec.data.batch_size = 1;
  spec.data.seq_len = scored + 1;
  spec.data.lengths = {scored + 1};
  spec.frozen = {"model.*"};
  const sim::GoldenRecord record = run(spec);
  CHECK(value(record, Phase::kStep, 1, "metric.skipped").item<double>() == 1);
  CHECK(value(record, Phase::kStep, 30, "metric.skipped").item<double>() == 0);
  // The sum of two is at most twice as large as one, and the scale falls by a quarter each step.
  CHECK(std::ssize(parted_skips(record)) <= (scored == 1 ? 0 : 3));
}

TEST_CASE("A run that diverges has no golden, which is a sentence", "[golden]") {
  sim::CaseSpec spec = small();
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.lr = 1e300;
  spec.optimizer.max_norm = 0;
  try {
    run(spec);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(error.fix().empty());
  }
}

}  // namespace shardproof::golden
