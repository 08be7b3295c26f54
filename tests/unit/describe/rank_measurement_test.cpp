#include "sim/describe/rank_measurement.h"

#include <catch2/catch.hpp>

#include "sim/case/inputs/case_data.h"
#include "tests/support/small_llama.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::describe;

TEST_CASE("A described rank holds no optimizer state of frozen parameters", "[cli]") {
  CaseSpec spec = small_llama_case(2);
  spec.data.batch_size = 2;
  spec.data.seq_len = 8;
  spec.steps = 1;
  spec.frozen = {"model.*"};
  const ModelConfig config = ModelConfig::from_json(spec.model);
  const auto measured = measure_rank(spec, config, load_case_batch(spec, config.vocab_size), 0);
  REQUIRE(measured->bytes[2].first == "optimizer");
  CHECK(measured->bytes[2].second == 2 * 96 * 48 * 8);  // of lm_head.weight, in float64
}
