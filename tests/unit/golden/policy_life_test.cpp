// The state of a policy on one device after a load.
#include "golden/policy_life.h"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "sim/case/record/golden_record.h"
#include "sim/case/runners.h"
#include "tensor/aten_view.h"

namespace shardproof::golden {
namespace {

using sim::StageSpec;

StageSpec train_of(int64_t samples) {
  return {.kind = sim::StageKind::kTrain, .global_batch_size = samples};
}

sim::CaseSpec life_of(std::vector<StageSpec> stages) {
  sim::CaseSpec spec;
  spec.name = "life";
  spec.workload = "policy";
  spec.model = nlohmann::json::parse(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 29,
    "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 3,
    "num_key_value_heads": 3, "head_dim": 4})");
  spec.seed = 5;
  spec.record_activations = false;
  spec.data.batch_size = 4;
  spec.data.seq_len = 7;
  spec.data.lengths = {7, 2, 5, 6};
  spec.optimizer.lr = 0.01;
  spec.optimizer.momentum = 0.9;  // of SGD
  spec.stages = std::move(stages);
  return spec;
}

sim::GoldenRecord lived(const sim::CaseSpec& spec) {
  const int fd = ::memfd_create("golden", 0);
  REQUIRE(fd >= 0);
  golden_main(sim::to_json(spec).dump(), fd);
  sim::GoldenRecord record = sim::GoldenRecord::from_fd(fd);
  ::close(fd);
  return record;
}

at::Tensor at_moment(const sim::GoldenRecord& record, int64_t moment, const std::string& name) {
  INFO(name << " of moment " << moment);
  const sim::GoldenTensor* found = record.find(Phase::kStep, moment, name);
  REQUIRE(found != nullptr);
  return tensor_of(found->value);
}

// Parameters and optimizer state of two steps are equal to the bit.
void check_same_state(const sim::GoldenRecord& record, int64_t moment, int64_t other) {
  int64_t compared = 0;
  for (const sim::GoldenTensor& tensor : record.tensors()) {
    const bool state = tensor.name.starts_with("param.") || tensor.name.starts_with("exp_avg") ||
                       tensor.name.starts_with("momentum_buffer.");
    if (!state || tensor.step != moment) continue;
    INFO(tensor.name << " of moments " << moment << " and " << other);
    CHECK(at::equal(tensor_of(tensor.value), at_moment(record, other, tensor.name)));
    ++compared;
  }
  CHECK(compared > 12);
}

double scalar(const sim::GoldenRecord& record, int64_t moment, const std::string& name) {
  return at_moment(record, moment, name).item<double>();
}

}  // namespace

TEST_CASE("After a load a life goes on as it did after the save, to the bit", "[golden][PW-8]") {
  const StageSpec save{.kind = sim::StageKind::kSave}, load{.kind = sim::StageKind::kLoad};
  // Steps 1 2 train, 3 4 train, 5 loads, 6 7 repeat the training of 3 4.
  sim::CaseSpec spec = life_of({train_of(2), save, train_of(2), load, train_of(2)});
  spec.optimizer.schedulers = {
      {.kind = ScheduleKind::kLinear, .start_factor = 0.25, .total_iters = 3},
      {.kind = ScheduleKind::kConstant, .factor = 0.125}};
  spec.optimizer.milestones = {2};
  for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    spec.optimizer.kind = optimizer;
    const sim::GoldenRecord record = lived(spec);
    check_same_state(record, 2, 5);
    check_same_state(record, 3, 6);
    check_same_state(record, 4, 7);
    CHECK_FALSE(at::equal(at_moment(record, 4, "param.lm_head.weight"),
                          at_moment(record, 5, "param.lm_head.weight")));
    CHECK(scalar(record, 1, "lr") == Approx(0.01 * 0.25));
    CHECK(scalar(record, 4, "lr") == Approx(0.01 * 0.5));
    CHECK(scalar(record, 7, "lr") == Approx(0.01 * 0.5));
  }
}

TEST_CASE("A load brings the loss scale back, and how long it has held", "[golden][PW-1][PW-8]") {
  const StageSpec save{.kind = sim::StageKind::kSave}, load{.kind = sim::StageKind::kLoad},
      train = train_of(4);
  sim::CaseSpec spec = life_of({train, train, save, train, train, load, train, train});
  spec.lives = 2;
  spec.precision = Precision::kFloat16;
  // The first step overflows; 1e3 fits, and doubles after every two steps.
  spec.loss_scale = {
      .init_scale = 1e9, .growth_factor = 2, .backoff_factor = 1e-6, .growth_interval = 2};
  const sim::GoldenRecord record = lived(spec);
  for (const int64_t life : {0, 7}) {
    const auto scale = [&](int64_t moment) {
      return scalar(record, life + moment, "metric.loss_scale");
    };
    CHECK(scale(1) == 1e9);
    CHECK(scalar(record, life + 1, "metric.skipped") == 1);
    CHECK(record.find(Phase::kStep, life + 1, "grad_norm") == nullptr);
    CHECK(scale(2) == Approx(1e3).epsilon(1e-12));  // saved after one good step at it
    CHECK(scale(3) == Approx(1e3).epsilon(1e-12));
    CHECK(scale(4) == Approx(2e3).epsilon(1e-12));
    CHECK(scale(6) == Approx(1e3).epsilon(1e-12));  // after the load and its second good step
    CHECK(scale(7) == Approx(2e3).epsilon(1e-12));
    for (const int64_t moment : {2, 3, 4, 6, 7}) {
      CHECK(scalar(record, life + moment, "metric.skipped") == 0);
    }
    check_same_state(record, life + 2, life + 5);
    check_same_state(record, life + 4, life + 7);
  }
}

TEST_CASE("A step that an overflow skips after a load leaves what was loaded", "[golden][PW-8]") {
  const StageSpec save{.kind = sim::StageKind::kSave}, load{.kind = sim::StageKind::kLoad},
      train = train_of(4);
  // The step at 1e12 is skipped; then 1e9 is saved, which overflows before and after the load.
  sim::CaseSpec spec = life_of({train, save, train, train, load, train, train});
  spec.precision = Precision::kFloat16;
  spec.loss_scale.init_scale = 1e12;
  spec.loss_scale.backoff_factor = 1e-3;
  const sim::GoldenRecord record = lived(spec);
  CHECK(scalar(record, 2, "metric.loss_scale") == Approx(1e9));
  CHECK(scalar(record, 2, "metric.skipped") == 1);
  CHECK(scalar(record, 5, "metric.loss_scale") == Approx(1e9));
  CHECK(scalar(record, 5, "metric.skipped") == 1);
  CHECK(scalar(record, 6, "metric.loss_scale") == scalar(record, 3, "metric.loss_scale"));
  CHECK(at::equal(at_moment(record, 5, "param.lm_head.weight"),
                  at_moment(record, 4, "param.lm_head.weight")));
}

}  // namespace shardproof::golden
