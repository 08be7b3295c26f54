#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "sim/case/record/expected_names.h"
#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

TEST_CASE("a golden record gives back every tensor with what it takes to judge it", "[record]") {
  Observation ids = seen("ids", at::arange(6, at::kLong).view({2, 3}), Phase::kForward);
  Observation activation = seen("norm.output", numbered({2, 3, 4}), Phase::kForward);
  activation.token_map = at::arange(6, at::kLong).view({2, 3});
  const auto golden = golden_from({ids, activation, seen("grad.w", numbered({5}) * 8)});

  REQUIRE(golden.tensors().size() == 3);
  CHECK(golden.metadata().at("made_by") == "test");
  const GoldenTensor* output = golden.find(Phase::kForward, 1, "norm.output");
  REQUIRE(output);
  CHECK(output->order == 1);
  CHECK(output->token_dims);
  CHECK(at::equal(tensor_of(output->value), numbered({2, 3, 4})));
  CHECK(output->scale == numbered({2, 3, 4}).abs().max().item<double>());
  CHECK(golden.find(Phase::kForward, 1, "ids")->value.dtype() == Dtype::kInt64);
  CHECK(golden.find(Phase::kForward, 1, "ids")->scale == 0);
  CHECK(golden.find(Phase::kForward, 2, "ids") == nullptr);
  CHECK(golden.find(Phase::kBackward, 1, "ids") == nullptr);
  CHECK(golden.find(Phase::kStep, 1, "grad.w")->phase_scale ==
        (numbered({5}) * 8).abs().max().item<double>());
}

TEST_CASE("phase_scale is the largest scale of the same phase and step only", "[record]") {
  const auto golden = golden_from({seen("grad.a", at::full({2}, 3.0, at::kDouble)),
                                   seen("grad.b", at::full({2}, 5.0, at::kDouble)),
                                   seen("grad.a", at::full({2}, 7.0, at::kDouble), Phase::kStep, 2),
                                   seen("x", at::full({2}, 11.0, at::kDouble), Phase::kForward)});
  CHECK(golden.tensors()[0].phase_scale == 5);
  CHECK(golden.tensors()[1].phase_scale == 5);
  CHECK(golden.tensors()[2].phase_scale == 7);
  CHECK(golden.tensors()[3].phase_scale == 11);
}

TEST_CASE("computed magnitudes above 1e30 count for the scale, and for that of gradients' phase",
          "[record]") {
  const auto golden = golden_from(
      {seen("loss", at::scalar_tensor(-2.75e50, at::kDouble), Phase::kForward),
       seen("x", at::tensor({1e31, -2e31, 4.0}, at::kDouble), Phase::kForward),
       seen("y", at::tensor({1.0, -2e31, 4.0}, at::kDouble), Phase::kForward),
       seen("masks", at::tensor({-INFINITY, -1e38, 1e38, 5.0}, at::kDouble), Phase::kForward)});
  CHECK(golden.tensors()[0].scale == 2.75e50);
  CHECK(golden.tensors()[1].scale == 2e31);
  CHECK(golden.tensors()[2].scale == 2e31);
  CHECK(golden.tensors()[3].scale == 5);
  CHECK(golden.tensors()[0].phase_scale == 5);

  const at::Tensor large = at::tensor({3e40, -2e31}, at::kDouble);
  const auto gradients = golden_from({seen("grad.a", large), seen("grad.b", at::ones({2})),
                                      seen("exp_avg_sq.a", large * large),
                                      seen("param.a", 2 * at::ones({2}, at::kDouble))});
  CHECK(gradients.tensors()[1].phase_scale == 3e40);
  CHECK(gradients.tensors()[3].phase_scale == 2);
}

TEST_CASE("scalars and moments leave no roundings in what stands beside them", "[record]") {
  const at::Tensor ones = at::ones({2}, at::kDouble);
  const auto golden = golden_from(
      {seen("loss", 1e9 * ones[0], Phase::kForward), seen("logits", 3 * ones, Phase::kForward),
       seen("grad_norm", 1e6 * ones[0]), seen("grad.a", 4 * ones), seen("exp_avg.a", ones),
       seen("exp_avg_sq.a", 1e5 * ones), seen("exp_avg_sq.b", ones), seen("param.a", 5 * ones)});
  const auto beside = [&](size_t i) { return golden.tensors()[i].phase_scale; };
  CHECK(beside(1) == 3);
  CHECK(beside(3) == 5);
  CHECK(beside(4) == 4);
  CHECK(beside(6) == 1e5);
  CHECK(beside(7) == 5);
}

TEST_CASE("gradients are copied when observed, because steps overwrite them", "[record]") {
  GoldenRecorder recorder(true);
  const at::Tensor grad = at::ones({3}, at::kDouble);
  recorder.observe(seen("grad.w", grad));
  grad.mul_(2);
  CHECK(recorder.tensors()[0].value[0].item<double>() == 1);
}

TEST_CASE("an activation that is overwritten after it was observed is our own fault", "[record]") {
  GoldenRecorder recorder(true);
  const at::Tensor output = at::ones({3}, at::kDouble);
  recorder.observe(seen("x.output", output, Phase::kForward));
  output.mul_(2);
  const MemoryFile file;
  CHECK_THROWS_AS(recorder.write(file.fd(), {}), InternalError);
}

TEST_CASE("a non-finite gradient is a fault of the golden, a non-finite activation is not",
          "[record]") {
  const MemoryFile file;
  const at::Tensor bad = at::tensor({1.0, NAN}, at::kDouble);
  for (const std::string name : {"grad.w", "param.w", "grad_norm"}) {
    GoldenRecorder recorder(true);
    recorder.observe(seen(name, bad));
    CHECK_THROWS_WITH(recorder.write(file.fd(), {}), Catch::Contains("a fault of the golden"));
  }
  for (const std::string name : {"loss", "logprobs"}) {
    GoldenRecorder recorder(true);
    recorder.observe(seen(name, bad, Phase::kForward));
    CHECK_THROWS_AS(recorder.write(file.fd(), {}), Error);
  }
  GoldenRecorder recorder(true);
  recorder.observe(seen("scores.output", bad, Phase::kForward));
  CHECK_NOTHROW(recorder.write(file.fd(), {}));
}

TEST_CASE("without activations only logprobs, loss and the step are kept", "[record]") {
  GoldenRecorder recorder(false);
  CHECK_FALSE(recorder.listens(Phase::kBackward));
  for (const std::string name : {"norm.output", "logprobs", "loss"}) {
    recorder.observe(seen(name, numbered({2, 2}), Phase::kForward));
  }
  recorder.observe(seen("norm.grad_input", numbered({2}), Phase::kBackward));
  recorder.observe(seen("grad.w", numbered({2})));
  REQUIRE(recorder.tensors().size() == 3);
  CHECK(recorder.tensors()[0].name == "logprobs");
  CHECK(recorder.tensors()[2].order == 2);
}

TEST_CASE("a name observed twice in the golden is our own fault", "[record]") {
  GoldenRecorder recorder(true);
  recorder.observe(seen("grad.w", numbered({2})));
  CHECK_THROWS_AS(recorder.observe(seen("grad.w", numbered({2}))), InternalError);
  CHECK_NOTHROW(recorder.observe(seen("grad.w", numbered({2}), Phase::kStep, 2)));
}

TEST_CASE("the scatter is the largest distance of any member", "[record]") {
  GoldenRecorder golden(true), near(true), far(true), farther(true);
  golden.observe(seen("grad.w", at::tensor({1.0, 2.0, -3.0}, at::kDouble)));
  near.observe(seen("grad.w", at::tensor({1.0, 2.125, -3.0625}, at::kFloat)));
  far.observe(seen("grad.w", at::tensor({1.0, 2.25, -3.125}, at::kFloat)));
  farther.observe(seen("grad.w", at::tensor({1.0, 2.5, -3.125}, at::kFloat)));
  for (const GoldenRecorder* member : {&far, &near}) golden.add_member(*member);
  CHECK(golden.tensors()[0].scatter == 0.25);
  CHECK(golden.scatter().at(record_key(Phase::kStep, 1, "grad.w")) == 0.25);
  const MemoryFile file;
  golden.write(file.fd(), {});
  const GoldenRecord record = GoldenRecord::from_fd(file.fd());
  CHECK(record.tensors()[0].scatter == 0.25);
  CHECK(record.tensors()[0].square == 14);
  CHECK(record.tensors()[0].factor_scatter == 0.0625);  // (0.25 * 2 + 0.125 * 3) / 14
  CHECK(record.tensors()[0].square_scatters == std::vector<double>{0.078125});
  golden.add_member(farther);
  const MemoryFile another;
  golden.write(another.fd(), {});
  const GoldenRecord wider = GoldenRecord::from_fd(another.fd());
  CHECK(wider.tensors()[0].scatter == 0.5);
  CHECK(wider.tensors()[0].few_scatter == 0.25);  // of the first two
  CHECK(wider.tensors()[0].few_factor_scatter == 0.0625);
}

TEST_CASE("each sample has a scatter of its own", "[record]") {
  GoldenRecorder golden(true), member(true);
  const auto activation = [](const at::Tensor& value) {
    Observation seen_now = seen("norm.output", value, Phase::kForward);
    seen_now.token_map = at::arange(6, at::kLong).view({2, 3});
    return seen_now;
  };
  at::Tensor value = numbered({2, 3, 4});
  golden.observe(activation(value.clone()));
  value[1][2] += 0.5;  // four elements
  member.observe(activation(value));
  golden.add_member(member);
  CHECK(golden.tensors()[0].square_scatters == std::vector<double>{0.0, 1.0});
}

TEST_CASE("a tensor apart from all others widens none that cannot be its rest", "[record]") {
  CHECK(largest_beside({}, 1) == 0);
  CHECK(largest_beside({5.0, 2.0, 1e-3}, 1e-3) == 5);
  CHECK(largest_beside({1e9, 3.0, 0.05}, 0.05) == 3);
  CHECK(largest_beside({1e9}, 0.05) == 0.05);
  CHECK(largest_beside({1e9, 3.0}, 1e9) == 1e9);
  CHECK(largest_beside({1e9, 1e4, 1.0}, 1.0) == 1e9);  // in reach of each other
  CHECK(largest_beside({1e9, 1e-5}, 1e-5) == 1e9);     // a rest of its roundings
  CHECK(largest_beside({1e9, 0.5, 1e-6}, 1e-6) == 0.5);
  CHECK(largest_beside({1.0, 2e-17, 1e-17}, 1e-17) == 1.0);  // so are both
}

TEST_CASE("a member that overflows or leaves a tensor out scatters without bound", "[record]") {
  const double infinite = std::numeric_limits<double>::infinity();
  GoldenRecorder golden(true), overflowed(true), skipped(true);
  golden.observe(seen("grad.w", at::tensor({1.0, 2.0}, at::kDouble)));
  overflowed.observe(seen("grad.w", at::tensor({1.0, infinite}, at::kFloat)));
  golden.add_member(overflowed);
  CHECK(golden.tensors()[0].scatter == infinite);
  CHECK(golden.tensors()[0].factor_scatter == infinite);
  GoldenRecorder other(true);
  other.observe(seen("grad.w", at::tensor({1.0, 2.0}, at::kDouble)));
  other.add_member(skipped);
  CHECK(other.tensors()[0].scatter == infinite);
}

TEST_CASE("the golden says which numbers of a forward pass its lower run kept in float32",
          "[record]") {
  GoldenRecorder golden(true), lower(true);
  for (GoldenRecorder* recorder : {&golden, &lower}) {
    const bool low = recorder == &lower;
    const auto as = [low](at::ScalarType type) { return low ? type : at::kDouble; };
    recorder->observe(seen("logprobs", numbered({3}).to(as(at::kFloat)), Phase::kForward));
    recorder->observe(seen("hidden", numbered({3}).to(as(at::kBFloat16)), Phase::kForward));
    recorder->observe(seen("loss", numbered({1}).to(as(at::kFloat)), Phase::kForward));
    recorder->observe(seen("grad.w", numbered({3}).to(as(at::kFloat)), Phase::kStep));
  }
  golden.add_member(lower);
  const MemoryFile file;
  golden.write(file.fd(), {});
  const GoldenRecord record = GoldenRecord::from_fd(file.fd());
  std::vector<bool> kept;
  for (const GoldenTensor& tensor : record.tensors()) kept.push_back(tensor.kept_in_float32);
  CHECK(kept == std::vector<bool>{true, false, false, false});
}

TEST_CASE("mixed widths lie where the index says", "[record]") {
  const auto golden = golden_from({seen("flag", at::tensor({1, 0, 1}, at::kByte), Phase::kForward),
                                   seen("a", numbered({3}, 3), Phase::kForward),
                                   seen("n", at::tensor({7, 8, 9}, at::kInt), Phase::kForward),
                                   seen("empty", at::empty({0, 4}, at::kDouble), Phase::kForward),
                                   seen("b", numbered({}, 4), Phase::kForward)});
  CHECK(at::equal(tensor_of(golden.tensors()[0].value), at::tensor({1, 0, 1}, at::kByte)));
  CHECK(at::equal(tensor_of(golden.tensors()[1].value), numbered({3}, 3)));
  CHECK(at::equal(tensor_of(golden.tensors()[2].value), at::tensor({7, 8, 9}, at::kInt)));
  CHECK(golden.tensors()[3].value.sizes() == std::vector<int64_t>{0, 4});
  CHECK(*golden.tensors()[4].value.data<double>() == numbered({}, 4).item<double>());
}

TEST_CASE("a damaged blob is a sentence at every length and after every flipped byte", "[record]") {
  GoldenRecorder recorder(true);
  recorder.observe(seen("grad.w", numbered({4})));
  const MemoryFile whole;
  recorder.write(whole.fd(), {{"k", "v"}});
  std::string bytes(static_cast<size_t>(::lseek(whole.fd(), 0, SEEK_END)), '\0');
  REQUIRE(::pread(whole.fd(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  for (size_t length = 0; length < bytes.size(); ++length) {
    const MemoryFile cut_off;
    REQUIRE(::write(cut_off.fd(), bytes.data(), length) == static_cast<ssize_t>(length));
    REQUIRE_THROWS_AS(GoldenRecord::from_fd(cut_off.fd()), Error);
  }
  const size_t index_start = bytes.size() - 100;  // the index and its seal
  for (size_t at = index_start; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x41);
    const MemoryFile file;
    REQUIRE(::write(file.fd(), flipped.data(), flipped.size()) ==
            static_cast<ssize_t>(flipped.size()));
    REQUIRE_THROWS_AS(GoldenRecord::from_fd(file.fd()), Error);
  }
}

TEST_CASE("observed tensors have the names of expected.safetensors", "[record]") {
  using enum ObservationKind;
  using Names = std::vector<std::string>;
  CHECK(expected_names_of(kLogprobs, "logprobs", 1, 3) == Names{"logprobs"});
  CHECK(expected_names_of(kLogprobs, "logprobs", 2, 3).empty());
  CHECK(expected_names_of(kLogprobs, "logprobs", 0, 0) == Names{"logprobs"});
  CHECK(expected_names_of(kLoss, "loss", 1, 3) == Names{"loss", "step1.loss"});
  CHECK(expected_names_of(kLoss, "loss", 3, 3) == Names{"step3.loss"});
  CHECK(expected_names_of(kGradNorm, "grad_norm", 2, 3) == Names{"step2.grad_norm"});
  CHECK(expected_names_of(kGradient, "grad.w", 1, 3) == Names{"grad.w"});
  CHECK(expected_names_of(kGradient, "grad.w", 2, 3).empty());
  CHECK(expected_names_of(kParameter, "param.w", 3, 3) == Names{"step3.param.w"});
  CHECK(expected_names_of(kParameter, "param.w", 2, 3).empty());
  CHECK(expected_names_of(kOutput, "model.norm.output", 1, 1).empty());
  CHECK(moment_names_of(kParameter, "param.w", 4) == Names{"step4.param.w"});
  CHECK(moment_names_of(kGradient, "grad.w", 4) == Names{"step4.grad.w"});
  CHECK(moment_names_of(kScores, "reference_scores", 1) == Names{"step1.reference_scores"});
  for (const ObservationKind kind : {kRefit, kExpAvg, kCount, kOutput, kRate}) {
    CHECK(moment_names_of(kind, "w", 1).empty());
  }
  CHECK(expected_names_of(kOutput, "grad.w", 1, 1).empty());  // a module that is called "grad"
}
