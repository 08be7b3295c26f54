#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"
#include "sim/case/record/parted_skips.h"
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
  const nlohmann::json answer = nlohmann::json::parse(golden_main(sim::to_json(spec).dump(), fd));
  sim::GoldenRecord record = sim::GoldenRecord::from_fd(fd);
  ::close(fd);
  CHECK(answer.at("tensors") == record.tensors().size());
  CHECK(answer.at("seconds").get<double>() > 0);
  CHECK(answer.at("bytes").get<int64_t>() > 0);
  return record;
}

at::Tensor value(const sim::GoldenRecord& record, Phase phase, int64_t step,
                 const std::string& name) {
  INFO(name);
  const sim::GoldenTensor* found = record.find(phase, step, name);
  REQUIRE(found != nullptr);
  return tensor_of(found->value);
}

at::Tensor stepped(const sim::GoldenRecord& record, int64_t step, const std::string& name) {
  return value(record, Phase::kStep, step, name);
}

std::vector<std::string> names_of(const sim::GoldenRecord& record, Phase phase, int64_t step) {
  std::vector<std::string> names;
  for (const sim::GoldenTensor& tensor : record.tensors()) {
    if (tensor.phase == phase && tensor.step == step) names.push_back(tensor.name);
  }
  return names;
}

}  // namespace

TEST_CASE("A golden holds every phase in the order of the run", "[golden]") {
  const sim::GoldenRecord record = run(small());
  const std::vector<std::string> forward = names_of(record, Phase::kForward, 1);
  CHECK(forward.front() == "model.embed_tokens.output");
  CHECK(forward[forward.size() - 3] == "lm_head.output");
  CHECK(forward[forward.size() - 2] == "logprobs");
  CHECK(forward.back() == "loss");
  CHECK(names_of(record, Phase::kForward, 2) == forward);
  CHECK(names_of(record, Phase::kBackward, 1).front() == "lm_head.grad_input");

  const std::vector<std::string> step = names_of(record, Phase::kStep, 2);
  CHECK(step.front() == "grad.lm_head.weight");
  const auto norm = std::find(step.begin(), step.end(), "grad_norm");
  REQUIRE(norm != step.end());
  CHECK(*(norm - 1) == "grad.model.embed_tokens.weight");
  CHECK(std::vector<std::string>(norm + 1, norm + 4) ==
        std::vector<std::string>{"exp_avg.model.embed_tokens.weight",
                                 "exp_avg_sq.model.embed_tokens.weight",
                                 "param.model.embed_tokens.weight"});
  const auto last = std::find_if(step.rbegin(), step.rend(), [](const std::string& name) {
    return !name.starts_with("metric.");  // metrics are last
  });
  CHECK(*last == "param.lm_head.weight");
  CHECK(names_of(record, Phase::kStep, 3).empty());
  CHECK(record.metadata().at("counted_sequences") == "3");
}

TEST_CASE("Activations, logits and logprobs have token dims; losses and parameters have not",
          "[golden]") {
  const sim::GoldenRecord record = run(small());
  for (const sim::GoldenTensor& tensor : record.tensors()) {
    INFO(tensor.name);
    const bool tokens = tensor.phase != Phase::kStep && tensor.name != "loss";
    CHECK(tensor.token_dims == tokens);
    if (tokens) {
      CHECK(tensor.value.size(0) == 3);
      CHECK(tensor.value.size(1) == 7);
    }
    CHECK(tensor.value.dtype() == Dtype::kFloat64);
    CHECK(tensor.scatter == 0);
  }
}

TEST_CASE("AdamW is the update of its paper, over clipped gradients", "[golden]") {
  sim::CaseSpec spec = small();
  spec.optimizer.max_norm = 0.3;
  spec.optimizer.weight_decay = 0.1;
  const sim::GoldenRecord record = run(spec);
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  at::Tensor mean = at::zeros({12, 10}, at::kDouble), square = mean.clone();
  at::Tensor before = stepped(record, 1, "param." + name);
  for (int64_t step = 1; step <= 2; ++step) {
    const double norm = stepped(record, step, "grad_norm").item<double>();
    CHECK(norm > 0.3);
    const at::Tensor grad = stepped(record, step, "grad." + name) * (0.3 / (norm + 1e-6));
    mean = 0.9 * mean + 0.1 * grad;
    square = 0.999 * square + 0.001 * grad * grad;
    CHECK(at::allclose(stepped(record, step, "exp_avg." + name), mean, 1e-13, 1e-18));
    CHECK(at::allclose(stepped(record, step, "exp_avg_sq." + name), square, 1e-13, 1e-20));
    const double power = static_cast<double>(step);
    const at::Tensor update =
        mean / (1 - std::pow(0.9, power)) / ((square / (1 - std::pow(0.999, power))).sqrt() + 1e-8);
    const at::Tensor after = stepped(record, step, "param." + name);
    if (step == 2)
      CHECK(at::allclose(after, before * (1 - 0.01 * 0.1) - 0.01 * update, 1e-12, 1e-15));
    before = after;
  }
}

TEST_CASE("SGD follows the clipped gradient; with momentum its buffer is there", "[golden]") {
  const double momentum = GENERATE(0.0, 0.9);
  sim::CaseSpec spec = small();
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.momentum = momentum;
  spec.optimizer.weight_decay = 0;
  spec.optimizer.max_norm = 0;  // no clipping
  const sim::GoldenRecord record = run(spec);
  const std::string name = "model.norm.weight";
  const at::Tensor velocity =
      momentum * stepped(record, 1, "grad." + name) + stepped(record, 2, "grad." + name);
  const at::Tensor moved =
      stepped(record, 1, "param." + name) - stepped(record, 2, "param." + name);
  CHECK(at::allclose(moved, 0.01 * velocity, 1e-9, 1e-15));
  const sim::GoldenTensor* buffer = record.find(Phase::kStep, 2, "momentum_buffer." + name);
  CHECK((buffer != nullptr) == (momentum > 0));
  if (buffer != nullptr) CHECK(at::allclose(tensor_of(buffer->value), velocity, 1e-13, 0));
  CHECK(record.find(Phase::kStep, 1, "exp_avg." + name) == nullptr);
}

TEST_CASE("The gradient norm is over all gradients, each once", "[golden]") {
  const bool tied = GENERATE(false, true);
  sim::CaseSpec spec = small();
  spec.model["tie_word_embeddings"] = tied;
  const sim::GoldenRecord record = run(spec);
  double squares = 0;
  for (const std::string& name : names_of(record, Phase::kStep, 1)) {
    if (name.starts_with("grad."))
      squares += stepped(record, 1, name).square().sum().item<double>();
  }
  CHECK(stepped(record, 1, "grad_norm").item<double>() ==
        Approx(std::sqrt(squares)).epsilon(1e-13));
  CHECK((record.find(Phase::kStep, 1, "grad.lm_head.weight") == nullptr) == tied);
}

TEST_CASE("A step that counts no token has no gradient, and is taken", "[golden]") {
  sim::CaseSpec spec = small();
  spec.data.dropped_samples = {0, 1, 2};
  spec.optimizer.weight_decay = 0.5;
  const sim::GoldenRecord record = run(spec);
  CHECK(value(record, Phase::kForward, 1, "loss").item<double>() == 0);
  CHECK(stepped(record, 1, "grad_norm").item<double>() == 0);
  const at::Tensor first = stepped(record, 1, "param.model.norm.weight"),
                   second = stepped(record, 2, "param.model.norm.weight");
  CHECK(at::allclose(second, first * (1 - 0.01 * 0.5), 1e-14, 0));
  CHECK(record.metadata().at("counted_tokens") == "0");
}

TEST_CASE("Padding gets logprob 0 and its tokens change nothing", "[golden]") {
  const at::Tensor logprobs = value(run(small()), Phase::kForward, 1, "logprobs");
  CHECK(logprobs.select(1, 0).abs().max().item<double>() == 0);
  CHECK(logprobs[1].narrow(0, 2, 5).abs().max().item<double>() == 0);
  CHECK(logprobs[0].narrow(0, 1, 6).max().item<double>() < 0);
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
  sim::CaseSpec spec = small();
  spec.record_activations = false;
  spec.precision = Precision::kFloat16;
  spec.steps = 24;
  spec.optimizer.lr = 1e-7;  // so that all steps have nearly the same gradients
  spec.loss_scale.backoff_factor = 0.75;
  const auto run_from = [&](double scale) {
    spec.loss_scale.init_scale = scale;
    return run(spec);
  };
  // The scale falls to where no sample overflows alone, and then to where their sum does not.
  const sim::GoldenRecord falling = run_from(0x1p24);
  std::istringstream text(falling.metadata().at(sim::kPartedSkips));
  const std::vector<int64_t> parted{std::istream_iterator<int64_t>(text), {}};
  REQUIRE_FALSE(parted.empty());
  CHECK(std::ssize(parted) < 6);
  for (const int64_t step : parted) {
    CHECK(stepped(falling, step, "metric.skipped").item<double>() == 1);
  }
  CHECK(stepped(falling, parted.front() - 1, "metric.skipped").item<double>() == 1);
  CHECK(stepped(falling, parted.back() + 1, "metric.skipped").item<double>() == 0);
  CHECK(run_from(1).metadata().count(sim::kPartedSkips) == 0);
  spec.precision = Precision::kBFloat16;
  CHECK(run_from(0x1p24).metadata().count(sim::kPartedSkips) == 0);
}

TEST_CASE("A gradient of few positions is parted where no position overflows alone", "[golden]") {
  const int64_t scored = GENERATE(1, 2);
  sim::CaseSpec spec = small();
  spec.record_activations = false;
  spec.precision = Precision::kFloat16;
  spec.data.batch_size = 1;
  spec.data.seq_len = scored + 1;
  spec.data.lengths = {scored + 1};
  spec.frozen = {"model.*"};
  spec.steps = 30;
  spec.optimizer.lr = 1e-7;
  spec.loss_scale.backoff_factor = 0.75;
  spec.loss_scale.init_scale = 0x1p24;
  const sim::GoldenRecord record = run(spec);
  CHECK(stepped(record, 1, "metric.skipped").item<double>() == 1);
  CHECK(stepped(record, 30, "metric.skipped").item<double>() == 0);
  const auto found = record.metadata().find(sim::kPartedSkips);
  std::istringstream text(found == record.metadata().end() ? "" : found->second);
  const std::vector<int64_t> parted{std::istream_iterator<int64_t>(text), {}};
  // The sum of two is at most twice as large as one, and the scale falls by a quarter each step.
  CHECK(std::ssize(parted) <= (scored == 1 ? 0 : 3));
}

TEST_CASE("Scoring records a forward pass of step 0 and nothing else", "[golden]") {
  sim::CaseSpec spec = small();
  spec.workload = "logprobs";
  const sim::GoldenRecord scored = run(spec), trained = run(small());
  for (const sim::GoldenTensor& tensor : scored.tensors()) {
    CHECK(tensor.phase == Phase::kForward);
    CHECK(tensor.step == 0);
  }
  CHECK(scored.tensors().back().name == "logprobs");
  CHECK(at::equal(tensor_of(scored.tensors().back().value),
                  value(trained, Phase::kForward, 1, "logprobs")));
}

TEST_CASE("Without activations only results are kept, and they are the same to the bit",
          "[golden]") {
  sim::CaseSpec spec = small();
  const sim::GoldenRecord all = run(spec);
  spec.record_activations = false;
  const sim::GoldenRecord few = run(spec);
  CHECK(few.find(Phase::kForward, 1, "model.norm.output") == nullptr);
  CHECK(names_of(few, Phase::kBackward, 1).empty());
  CHECK(names_of(few, Phase::kForward, 1) == std::vector<std::string>{"logprobs", "loss"});
  CHECK(names_of(few, Phase::kStep, 2) == names_of(all, Phase::kStep, 2));
  for (const std::string& name : names_of(few, Phase::kStep, 2)) {
    CHECK(at::equal(stepped(few, 2, name), stepped(all, 2, name)));
  }
}

TEST_CASE("What has no golden is a sentence of the right kind", "[golden]") {
  sim::CaseSpec spec = small();
  ErrorKind kind = ErrorKind::kBadInput;
  SECTION("workload") { spec.workload = "trian"; }
  SECTION("steps") { spec.steps = 0; }
  SECTION("diverges") {
    spec.optimizer.kind = OptimizerKind::kSgd;
    spec.optimizer.lr = 1e300;
    spec.optimizer.max_norm = 0;
  }
  SECTION("architecture") {
    spec.model["architectures"] = {"MambaForCausalLM"};
    kind = ErrorKind::kRefused;
  }
  try {
    run(spec);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    CHECK_FALSE(error.fix().empty());
  }
}

}  // namespace shardproof::golden
