#include "sim/run/limits.h"

#include <catch2/catch.hpp>
#include <limits>

#include "sim/case/inputs/case_data.h"
#include "sim/describe/rank_measurement.h"
#include "tests/support/small_llama.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::describe;
using namespace shardproof::sim::run;

using Catch::Contains;

namespace {

CaseSpec long_rows() {
  CaseSpec spec = small_llama_case(3);
  spec.data.batch_size = 4;
  spec.data.seq_len = 96;
  spec.steps = 2;
  spec.world.backend = Backend::kGloo;  // the process of an emulated world holds more than tensors
  return spec;
}

void use_experts(CaseSpec& spec) {
  spec.model["model_type"] = "mixtral";
  spec.model["architectures"] = {"MixtralForCausalLM"};
  spec.model["num_local_experts"] = 64;
}

// The sum of what each rank takes at most, measured one by one.
double measured_bytes(const CaseSpec& spec) {
  const ModelConfig config = ModelConfig::from_json(spec.model);
  const Batch batch = load_case_batch(spec, config.vocab_size);
  double sum = 0;
  for (int64_t rank = 0; rank < spec.parallel.world_size(); ++rank) {
    sum += static_cast<double>(measure_rank(spec, config, batch, rank)->bytes.back().second);
  }
  return sum;
}

MachineLimits machine_with(double memory) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  return {.memory = memory,
          .address_space = kNoLimit,
          .threads = kNoLimit,
          .descriptors = kNoLimit,
          .cores = 2};
}

}  // namespace

TEST_CASE("A case is refused below a bound that is under what its ranks take", "[limits]") {
  CaseSpec spec = long_rows();
  SECTION("one rank") {}
  SECTION("bfloat16") { spec.precision = Precision::kBFloat16; }
  SECTION("tensor parallel") { spec.parallel.tp = 2; }
  SECTION("sequence parallel, many words") {
    spec.parallel.tp = 2;
    spec.parallel.sequence_parallel = true;
    spec.model["vocab_size"] = 2048;
  }
  SECTION("experts on several ranks") {
    use_experts(spec);
    spec.parallel.dp = spec.parallel.ep = 4;
  }
  SECTION("sharded experts on several ranks") {
    use_experts(spec);
    spec.parallel.dp = 4;
    spec.parallel.ep = 2;
    spec.parallel.data_parallel = DataParallelKind::kFsdp;
  }
  SECTION("context parallel") { spec.parallel.cp = 2; }
  SECTION("sharded") {
    spec.parallel.dp = 2;
    spec.parallel.data_parallel = DataParallelKind::kFsdp;
  }
  SECTION("scoring") { spec.workload = "logprobs"; }
  const double measured = measured_bytes(spec);
  CHECK_NOTHROW(check_world_limits(spec, machine_with(measured)));
  CHECK_THROWS_AS(check_world_limits(spec, machine_with(measured / 3)), Error);
}

TEST_CASE("More rank processes than cores can turn to are refused, and emulated ranks are not",
          "[limits]") {
  const MachineLimits there = machine_with(std::numeric_limits<double>::infinity());
  CHECK_NOTHROW(check_processes(Backend::kGloo, 256, there));
  CHECK_THROWS_WITH(check_processes(Backend::kGloo, 257, there),
                    Contains("257 rank processes would share 2 cores, 128 on each") &&
                        Contains("--ignore-limits"));
  CHECK_NOTHROW(check_processes(Backend::kEmulated, 5000, there));
}
