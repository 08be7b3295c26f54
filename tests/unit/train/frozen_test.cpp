// Patterns that freeze nothing, or everything; scenarios/train/frozen trains with the others.
#include <catch2/catch.hpp>

#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

TEST_CASE("patterns of frozen parameters fit some parameters and not all", "[train]") {
  Decoder model(small_model(), seeded_weights(small_model(), 1));
  CHECK_THROWS_WITH(model.freeze({"model.embed*", "embed"}),
                    Catch::Contains("\"embed\"") && Catch::Contains("none of"));
  CHECK_THROWS_WITH(model.freeze({"*"}), Catch::Contains("are frozen"));
}

}  // namespace
}  // namespace shardproof::tests
