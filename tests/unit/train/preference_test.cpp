// The preference loss and its metrics by definition; pairs stay together; dummies.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/train/small_run.h"
#include "train/loss.h"
#include "train/microbatch.h"

namespace shardproof::tests {
namespace {

// Two pairs of three positions. In the second pair the rejected sample has no counted token.
struct Pairs {
  std::vector<double> now = {0, -1.0, -2.0, 0, -1.5, -0.5, 0, -3.0, -1.0, 0, -9.0, -9.0};
  std::vector<double> reference = {0, -1.2, -2.5, 0, -1.0, -0.7, 0, -2.0, -2.0, 0, -1.0, -1.0};
  std::vector<double> mask = {0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0};
  LossInputs inputs(bool gradient = false) const {
    const auto tensor = [](const std::vector<double>& values) {
      return at::tensor(values, at::kDouble).view({4, 3});
    };
    return {.logprobs = tensor(now).requires_grad_(gradient),
            .mask = tensor(mask),
            .reference_logprobs = tensor(reference)};
  }
};

constexpr double kBeta = 0.3;
LossOptions preference_options(LossNormalization normalization) {
  return {.kind = LossKind::kPreference, .normalization = normalization, .kl_beta = kBeta};
}

double metric(const std::vector<LossMetric>& metrics, const std::string& name) {
  for (const LossMetric& one : metrics) {
    if (name == one.name) return one.addend.item<double>();
  }
  return std::numeric_limits<double>::quiet_NaN();
}

TEST_CASE("preference is -log sigmoid of how much further the chosen moved, of whole pairs",
          "[train][PW-3]") {
  const Pairs pairs;
  const LossCounts counts = counts_of(pairs.inputs().mask);
  CHECK(counts.tokens == 5);
  CHECK(counts.sequences == 3);
  CHECK(counts.pairs == 1);
  const double chosen = 0.2 + 0.5, rejected = -0.5;
  const LossOptions sums = preference_options(LossNormalization::kToken);
  const double margin = kBeta * (chosen - rejected);
  CHECK(loss_addend(pairs.inputs(), counts, sums).item<double>() ==
        Approx(std::log1p(std::exp(-margin))).epsilon(1e-14));
  CHECK(metric(loss_metrics(pairs.inputs(), counts, sums), "margin") == Approx(margin));
  CHECK(metric(loss_metrics(pairs.inputs(), counts, sums), "accuracy") == 1);
  const LossOptions means = preference_options(LossNormalization::kSequence);
  CHECK(loss_addend(pairs.inputs(), counts, means).item<double>() ==
        Approx(std::log1p(std::exp(-kBeta * (chosen / 2 - rejected)))).epsilon(1e-14));
}

TEST_CASE("a policy equal to its reference wins nothing, however its sums round", "[train][PW-3]") {
  Pairs pairs;
  pairs.mask = {0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1};
  const LossOptions sums = preference_options(LossNormalization::kToken);
  for (const double noise : {0.0, 1e-16, -1e-16, 4e-15}) {
    pairs.reference = pairs.now;
    pairs.reference[1] = pairs.now[1] * (1 + noise);
    pairs.reference[7] = pairs.now[7] * (1 + noise);
    const auto metrics = loss_metrics(pairs.inputs(), counts_of(pairs.inputs().mask), sums);
    CHECK(metric(metrics, "accuracy") == 0);
  }
  pairs.reference = pairs.now;
  pairs.reference[1] -= 1e-6;
  const auto metrics = loss_metrics(pairs.inputs(), counts_of(pairs.inputs().mask), sums);
  CHECK(metric(metrics, "accuracy") == 0.5);
}

TEST_CASE("a pair of which one sample does not count gives no gradient", "[train][PW-3]") {
  const Pairs pairs;
  const LossInputs inputs = pairs.inputs(/*gradient=*/true);
  loss_addend(inputs, counts_of(inputs.mask), preference_options(LossNormalization::kToken))
      .backward();
  const at::Tensor grad = inputs.logprobs.grad();
  CHECK(grad.narrow(0, 2, 2).eq(0).all().item<bool>());
  const double slope = kBeta / (1 + std::exp(kBeta * 1.2));
  CHECK(grad[0][1].item<double>() == Approx(-slope));
  CHECK(grad[1][1].item<double>() == Approx(slope));
  CHECK(grad[1][2].item<double>() == 0);
}

TEST_CASE("metrics of clipped_pg are means over counted tokens, whatever stands elsewhere",
          "[train][PW-3]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto row = [](std::vector<double> values) {
    return at::tensor(values, at::kDouble).view({1, 4});
  };
  const LossInputs inputs{.logprobs = row({0, -1.0, -2.0, nan}),
                          .mask = row({0, 1, 1, 0}),
                          .prev_logprobs = row({nan, -1.5, -2.05, nan}),
                          .reference_logprobs = row({nan, -1.1, -2.3, nan}),
                          .advantages = row({nan, 1, 1, nan})};
  const LossOptions options{.kind = LossKind::kClippedPolicyGradient};
  const auto metrics = loss_metrics(inputs, {.tokens = 2, .sequences = 1}, options);
  CHECK(metric(metrics, "ratio") == Approx((std::exp(0.5) + std::exp(0.05)) / 2));
  CHECK(metric(metrics, "clip_fraction") == 0.5);
  const auto kl = [](double d) { return std::exp(d) - d - 1; };
  CHECK(metric(metrics, "kl") == Approx((kl(-0.1) + kl(-0.3)) / 2));
  CHECK(loss_metrics(inputs, {.tokens = 2, .sequences = 1}, {}).empty());
}

TEST_CASE("samples that belong together are dealt together, dummies too", "[train][PW-2][PW-3]") {
  const Batch batch = seeded_batch(
      {.batch_size = 10, .seq_len = 6, .vocab_size = small_model().vocab_size, .seed = 1});
  std::vector<int64_t> dealt;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto microbatches = deal_microbatches(batch, 3, rank, 2, 1, /*samples_together=*/2);
    CHECK(microbatches.size() == 2);
    for (const Microbatch& micro : microbatches) {
      REQUIRE(micro.batch.size() == 2);
      const int64_t first = micro.result_map[0][0].item<int64_t>();
      if (first < 0) continue;
      CHECK(micro.result_map[1][0].item<int64_t>() == first + 6);
      dealt.push_back(first / 6);
    }
  }
  CHECK(dealt == std::vector<int64_t>{0, 2, 4, 6, 8});
}

TEST_CASE("batching that parts pairs is refused in training, and scores", "[train][PW-2][PW-3]") {
  const Batch pairs = seeded_batch(
      {.batch_size = 6, .seq_len = 6, .vocab_size = small_model().vocab_size, .seed = 1});
  for (const BatchingKind kind : {BatchingKind::kPacked, BatchingKind::kDynamic}) {
    Trial trial{.mesh = Mesh::training({})};
    trial.options.loss.kind = LossKind::kPreference;
    trial.options.batching.kind = kind;
    const std::string said = std::string(kind == BatchingKind::kPacked ? "packed" : "dynamic") +
                             " batching parts the 2 neighboring samples";
    CHECK_THROWS_WITH(train_with(trial, [&](Trainer& t, MeshComm&) { t.step(pairs); }),
                      Catch::Contains(said));
    CHECK_THROWS_WITH(train_with(trial, [&](Trainer& t, MeshComm&) { t.evaluate(pairs); }),
                      Catch::Contains(said));
    CHECK_NOTHROW(train_with(trial, [&](Trainer& t, MeshComm&) { t.score(pairs); }));
  }
}

TEST_CASE("a preference loss keeps its pairs together without being told", "[train][PW-3]") {
  const Batch pairs = seeded_batch(
      {.batch_size = 6, .seq_len = 6, .vocab_size = small_model().vocab_size, .seed = 1});
  const auto trained_on = [&](const Mesh& mesh) {
    Trial trial{.mesh = mesh};
    trial.options.loss.kind = LossKind::kPreference;
    return train_with(trial, [&](Trainer& trainer, MeshComm&) { trainer.step(pairs); });
  };
  // Three pairs over two ranks are four samples and two.
  CHECK(difference(trained_on(Mesh::training({})), trained_on(Mesh::training({.dp = 2})), 1e-10) ==
        "");
}

TEST_CASE("what stands in a dropped sample, which the dummies copy, reaches nothing",
          "[train][PW-2]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  Batch clean = small_batch();
  clean.sample_mask = clean.sample_mask.clone();
  clean.sample_mask[0] = 0;
  Batch poisoned = clean;
  for (at::Tensor* tensor :
       {&poisoned.prev_logprobs, &poisoned.reference_logprobs, &poisoned.advantages}) {
    *tensor = tensor->clone();
    (*tensor)[0].fill_(tensor == &poisoned.prev_logprobs ? -inf : nan);
  }
  const auto run = [&](const Batch& batch, const Mesh& mesh, DataParallelKind kind) {
    Trial trial{.mesh = mesh, .steps = 0};
    trial.options.micro_batch_size = 1;
    trial.options.loss.kind = LossKind::kClippedPolicyGradient;
    trial.parallel.data.kind = kind;
    std::vector<StepMetrics> metrics;
    Trained trained = train_with(trial, [&](Trainer& trainer, MeshComm& comm) {
      for (int step = 0; step < 2; ++step) {
        const StepMetrics now = trainer.step(batch);
        if (comm.rank() == 0) metrics.push_back(now);
      }
    });
    trained.metrics = metrics;
    return trained;
  };
  const Mesh one = Mesh::training({}), three = Mesh::training({.dp = 3});
  const Trained golden = run(clean, one, DataParallelKind::kReplicate);
  CHECK(std::isfinite(golden.metrics.back().of_loss.at("kl")));
  for (const DataParallelKind kind : {DataParallelKind::kReplicate, DataParallelKind::kFsdp}) {
    const Trained actual = run(poisoned, three, kind);  // 2, 2 and 1 samples: one dummy
    CHECK(difference(golden, actual, 1e-9) == "");
    for (const char* name : {"ratio", "kl", "clip_fraction"}) {
      CHECK(actual.metrics.back().of_loss.at(name) ==
            Approx(golden.metrics.back().of_loss.at(name)));
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
