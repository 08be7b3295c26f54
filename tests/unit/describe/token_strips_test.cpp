#include "sim/describe/token_strips.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::describe;

namespace {

Batch batch_of(const std::vector<int64_t>& lengths, int64_t seq_len) {
  return seeded_batch({.batch_size = static_cast<int64_t>(lengths.size()),
                       .seq_len = seq_len,
                       .lengths = lengths,
                       .vocab_size = 7,
                       .seed = 3});
}

CaseSpec packed_over_cp(int64_t cp) {
  CaseSpec spec;
  spec.parallel.cp = cp;
  spec.batching.kind = BatchingKind::kPacked;
  return spec;
}

}  // namespace

TEST_CASE("A strip for each sequence, each packed row and each rank's part of it", "[tokens]") {
  CHECK(token_strips(packed_over_cp(2), batch_of({3, 1}, 5), /*color=*/false) ==
        "who holds which token: a letter for each sample, . for padding, then positions\n"
        "  sample 0                  AAA..\n"
        "  sample 1                  B....\n"
        "  microbatch 0 row 0        AAA.B...\n"
        "    cp 0                    A.B.   A 0, B 0\n"
        "    cp 1                    AA..   A 1-2\n");
}

TEST_CASE("Rows that are not cut say their positions themselves", "[tokens]") {
  CaseSpec spec = packed_over_cp(1);
  spec.parallel.dp = 2;
  const std::string text = token_strips(spec, batch_of({3, 1, 2}, 5), /*color=*/false);
  CHECK(text.find("  dp 0 microbatch 0 row 0   AAAB   A 0-2, B 0\n") != std::string::npos);
  CHECK(text.find("  dp 1 microbatch 0 row 0   CC   C 0-1\n") != std::string::npos);
}

TEST_CASE("What is too wide is told in words, what is too long is counted", "[tokens]") {
  const Batch batch = batch_of({3, 1}, 5);
  const std::string narrow =
      token_strips(packed_over_cp(2), batch, /*color=*/false, /*most_columns=*/4);
  CHECK(narrow.find("  microbatch 0 row 0        A 0-2, B 0\n") != std::string::npos);
  const std::string brief =
      token_strips(packed_over_cp(2), batch, /*color=*/false, 160, /*most_lines=*/3);
  CHECK(brief.find(".. and 2 lines more\n") != std::string::npos);
  CHECK(brief.find("cp 0") == std::string::npos);
}

TEST_CASE("Colours are escape codes around each run, and none around padding", "[tokens]") {
  const std::string text = token_strips(packed_over_cp(1), batch_of({2}, 3), /*color=*/true);
  CHECK(text.find("\x1b[30;48;5;75mAA\x1b[0m.\n") != std::string::npos);
}

TEST_CASE("Where nothing is packed or cut nothing is said", "[tokens]") {
  CHECK(token_strips(CaseSpec{}, batch_of({2, 3}, 3), /*color=*/false).empty());
}
