#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "sim/judge/diff/result_row.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

ResultRow failing_row() {
  ResultRow row(Outcome::kMismatch);
  row.kind = ObservationKind::kGradient;
  row.name = "grad.w";
  row.phase = Phase::kBackward;
  row.step = 3;
  row.microbatch = 2;
  row.rank = 5;
  row.order = 1000000;
  row.reason = "no reason";
  row.judged = 1 << 20;
  row.padding = 5;
  row.rounding_only = true;
  row.count = int64_t{1} << 40;
  row.bad_count = 7;
  row.worst_ratio = std::numeric_limits<double>::infinity();
  row.worst_error = std::numeric_limits<double>::quiet_NaN();
  row.golden_value = -std::numeric_limits<double>::infinity();
  row.actual_value = 0.1;
  row.allowance = 5e-324;
  row.golden_scale = 2;
  row.worst_global_index = {1, 2};
  row.worst_local_index = {0, 2};
  row.global_shape = {4, 300};
  row.local_shape = {2, 300};
  row.factor = -0.5;
  row.factor_residual = 1e-9;
  row.dtype = "bfloat16";
  row.layout = "S(0)tp";
  row.replicas = std::vector<int64_t>{1, 3, 65535};
  row.site = "received by stage 2 (chunk 1)";
  row.digest = 0xfedcba9876543210;
  row.problem = "wrong shape";
  row.calls_before = 24;
  row.tokens = 0xffffffffffffffff;
  row.compares_replicas = false;
  row.covered = 3;
  row.coverage_of_all = 0x8000000000000000;
  row.evidence = {EqualsStep{2, true},
                  PartEqualsStep{1},
                  SumOfSteps{1, 2},
                  ShareOfUpdate{0.5},
                  EqualsTensor{"grad.v"},
                  ValuesOf{"bfloat16"},
                  AddendsThrough{"float16"},
                  ExpertResults{3, 1, 2, 4, 5, 10, 6, 7.5, {9, 1, 8, 0}},
                  OtherComputation{"norm of some experts", 1, 2, 0.5, {3, 4}}};
  return row;
}

RankReport full_report() {
  RankReport report;
  report.rank = 5;
  ResultRow good(Outcome::kMatch);
  good.kind = ObservationKind::kOutput;
  good.name = "model.norm.output";
  good.rank = 5;
  good.count = 12;
  good.digest = 99;
  good.worst_ratio = 0.25;
  good.dtype = "float64";
  good.replicas = std::vector<int64_t>{5};
  ResultRow partial = good;
  partial.outcome = Outcome::kAddend;
  partial.partial = true;
  partial.partial_axes = {"dp", "tp"};
  report.rows = {good, failing_row(), partial, good};
  report.calls = {"all_reduce(sum) tp[0,1] [4] float64 a", "barrier tp[0,1]",
                  "all_reduce(sum) tp[0,1] [4] float64 a"};
  report.call_counts = {{{"tp", "all_reduce"}, 2}, {{"tp", "barrier"}, 1}};
  report.timeline = {{.name = "x", .kind = StretchKind::kWait, .start_us = 1.5, .duration_us = 2},
                     {.name = "F0", .kind = StretchKind::kAction, .step = 3},
                     {.name = "x",
                      .in_virtual_time = true,
                      .group = "tp[0,1]",
                      .ready_us = 2.5,
                      .blocked_from_us = 3.5,
                      .last_rank = 1}};
  report.metrics = {{"loss", std::numeric_limits<double>::quiet_NaN()},
                    {"grad_norm", std::numeric_limits<double>::infinity()},
                    {"tokens", 12}};
  report.peak_tensor_bytes = 123456789012;
  report.scored_tokens = 43;
  report.microbatch_samples = {{0, 2}, {1}};
  report.seconds = 1.25;
  report.compare_seconds = 0.125;
  Piece piece{.kind = ObservationKind::kGradient,
              .name = "grad.w",
              .phase = Phase::kStep,
              .step = 1,
              .microbatch = 0,
              .rank = 5,
              .order = 3,
              .partial = true,
              .partial_axes = {"tp"},
              .global_shape = {2, 3},
              .dims = {{0, -1}, {1, 2}},
              .strides = {3, 1}};
  piece.actual = {1, std::numeric_limits<double>::quiet_NaN(), 3, 4};
  piece.golden = {1, 2, std::numeric_limits<double>::infinity(), 4};
  piece.allowance = 1e-10;
  report.pieces = {piece};
  using enum ObservationKind;
  report.unobserved = {
      {7, Phase::kForward, 2, kLoss, "loss", {}},
      {8, Phase::kBackward, 2, kInputGradient, "x.grad_input", {3}, Excuse::kNotRecorded}};
  return report;
}

void check_same(const ResultRow& a, const ResultRow& b) {
  nlohmann::json left = to_json(a), right = to_json(b);
  CHECK(left.dump() == right.dump());
}

}  // namespace

TEST_CASE("a report survives its way to the launcher, NaN and infinities included", "[codec]") {
  const RankReport report = full_report();
  const RankReport back = decode_rank_report(encode(report));
  CHECK(back.rank == 5);
  REQUIRE(back.rows.size() == 4);
  for (size_t i = 0; i < 4; ++i) check_same(report.rows[i], back.rows[i]);
  for (size_t i = 0; i < 4; ++i) CHECK(report.rows[i].kind == back.rows[i].kind);
  CHECK((back.rows[1].evidence == report.rows[1].evidence));
  CHECK(std::isnan(back.rows[1].worst_error));
  CHECK(std::isinf(back.rows[1].worst_ratio));
  CHECK(back.rows[2].partial_axes == std::vector<std::string>{"dp", "tp"});
  CHECK(back.calls == report.calls);
  CHECK(back.call_counts == report.call_counts);
  CHECK((back.timeline == report.timeline));
  CHECK(std::isnan(back.metrics.at("loss").get<double>()));
  CHECK(std::isinf(back.metrics.at("grad_norm").get<double>()));
  CHECK(back.scored_tokens == 43);
  CHECK(back.microbatch_samples == report.microbatch_samples);
  CHECK(back.peak_tensor_bytes == 123456789012);
  CHECK(back.seconds == 1.25);
  CHECK(back.compare_seconds == 0.125);
  REQUIRE(back.pieces.size() == 1);
  CHECK(back.pieces[0].kind == ObservationKind::kGradient);
  CHECK(back.pieces[0].dims == report.pieces[0].dims);
  CHECK(back.pieces[0].strides == report.pieces[0].strides);
  CHECK(std::isnan(back.pieces[0].actual[1]));
  CHECK(std::isinf(back.pieces[0].golden[2]));
  CHECK(back.pieces[0].allowance == 1e-10);
  REQUIRE(back.unobserved.size() == 2);
  CHECK_FALSE(back.unobserved[0].excuse);
  CHECK(back.unobserved[1].excuse == Excuse::kNotRecorded);
  CHECK(back.unobserved[1].kind == ObservationKind::kInputGradient);
  CHECK(back.unobserved[0].name == "loss");
  CHECK(back.unobserved[0].order == 7);
}

TEST_CASE("a row that is right travels without shapes and indices", "[codec]") {
  RankReport report;
  ResultRow row = failing_row();
  row.outcome = Outcome::kMatch;
  row.evidence.clear();
  row.problem.clear();
  report.rows = {row};
  const ResultRow back = decode_rank_report(encode(report)).rows.at(0);
  CHECK(back.global_shape.empty());
  CHECK(back.digest == row.digest);
  CHECK(back.covered == row.covered);
  CHECK(back.replicas == row.replicas);
}

TEST_CASE("rows with equal replicas share one list of them", "[codec]") {
  RankReport report;
  ResultRow row = failing_row();
  std::vector<int64_t> all(1000);
  std::iota(all.begin(), all.end(), 0);
  const auto add_row = [&] {
    row.replicas = all;
    report.rows.push_back(row);
    return encode(report).size();
  };
  const size_t one = add_row(), two = add_row();
  CHECK(two - one < one / 4);
  const std::vector<ResultRow> rows = decode_rank_report(encode(report)).rows;
  CHECK(rows.at(1).replicas == all);
  CHECK((rows.at(0).replicas.begin() == rows.at(1).replicas.begin()));
}

TEST_CASE("the bytes are CBOR that others can read", "[codec]") {
  const std::string bytes = encode(full_report());
  const nlohmann::json json =
      nlohmann::json::from_cbor(std::vector<uint8_t>(bytes.begin(), bytes.end()));
  REQUIRE(json.is_array());
  CHECK(json.at(1) == 5);
  CHECK(json.at(3).size() == 4);
  CHECK(json.at(3).at(1).at(1) == "grad.w");
}

TEST_CASE("a report that is cut off or has a wrong byte is our own fault, never a crash",
          "[codec]") {
  const std::string bytes = encode(full_report());
  for (size_t length = 0; length < bytes.size(); ++length) {
    REQUIRE_THROWS_AS(decode_rank_report(bytes.substr(0, length)), InternalError);
  }
  CHECK_THROWS_AS(decode_rank_report(bytes + "x"), InternalError);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x20, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        decode_rank_report(damaged);  // damage to a number leaves a valid report
      } catch (const InternalError&) {
      }
    }
  }
}

TEST_CASE("a piece whose indices lead outside its tensor is not accepted", "[codec]") {
  RankReport report = full_report();
  report.pieces[0].dims[0][0] = 2;  // outside of [2, 3]
  CHECK_THROWS_AS(decode_rank_report(encode(report)), InternalError);
  report = full_report();
  report.pieces[0].actual.pop_back();
  CHECK_THROWS_AS(decode_rank_report(encode(report)), InternalError);
  report = full_report();
  report.pieces[0].strides[0] = -3;
  CHECK_THROWS_AS(decode_rank_report(encode(report)), InternalError);
}

TEST_CASE("rows as JSON keep what JSON has no numbers for", "[codec]") {
  const auto json = nlohmann::json::parse(to_json(failing_row()).dump());
  CHECK(json["worst_error"] == "nan");
  CHECK(json["worst_ratio"] == "inf");
  CHECK(json["golden_value"] == "-inf");
  CHECK(json["actual_value"] == 0.1);
  CHECK(json["allowance"] == 5e-324);
  CHECK(json["name"] == "grad.w");
  CHECK(json["phase"] == "backward");
  CHECK(json["count"] == int64_t{1} << 40);
  CHECK(json["worst_global_index"] == std::vector<int64_t>{1, 2});
  CHECK(json["evidence"].size() == 9);
  CHECK(json["evidence"][4] == "equals the golden's grad.v");
}
