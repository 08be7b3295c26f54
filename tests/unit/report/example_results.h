// Case results for tests of reports: a match, a mismatch with hostile text and numbers, and a dead
// rank.
#pragma once

#include <limits>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::report {

inline const std::string kHostileText =
    "a \x01 control, \xff\xfe bytes, <tag> & \"quotes\" ]]> \n second line";

inline CaseSpec example_spec(const std::string& name, int64_t dp, int64_t tp) {
  CaseSpec spec;
  spec.name = name;
  spec.file = "scenarios/" + name + ".yaml";
  spec.parallel.dp = dp;
  spec.parallel.tp = tp;
  return spec;
}

inline judge::ResultRow example_row(const std::string& name, int64_t rank, int64_t order,
                                    double ratio) {
  judge::ResultRow row(ratio <= 1 ? judge::Outcome::kMatch : judge::Outcome::kMismatch);
  row.name = name;
  row.phase = Phase::kStep;
  row.step = 1;
  row.rank = rank;
  row.order = order;
  row.worst_ratio = ratio;
  row.dtype = "float64";
  row.count = row.judged = 6;
  return row;
}

inline judge::CaseResult example_match() {
  judge::CaseResult result;
  result.spec = example_spec("tp/llama_tp2", 1, 2);
  result.verdict = Verdict::kMatch;
  result.as_expected = true;
  result.tensors_compared = 2;
  result.elements_compared = 96;
  result.worst_ratio = 0.031;
  result.seconds = 0.125;
  for (int64_t rank = 0; rank < 2; ++rank) {
    judge::RankReport report;
    report.rank = rank;
    report.rows = {example_row("grad.b", rank, 1, 0.01), example_row("grad.a", rank, 0, 0.031)};
    report.calls = {"all_reduce(sum) tp[0,1] [4] float64 a", "barrier world[0,1] [] float64 b"};
    report.timeline = {{.name = "all_reduce tp",
                        .start_us = 5000.0 + 10 * static_cast<double>(rank),
                        .duration_us = 7.5},
                       {.name = "no time", .start_us = std::numeric_limits<double>::quiet_NaN()}};
    result.reports.push_back(report);
    result.endings.push_back({.rank = rank, .message = "", .last_call = "", .bytes = ""});
  }
  return result;
}

// A piece of a golden [2, 4]: rows 0 and 1, columns 3 and 1, and a padding column.
inline judge::Piece example_piece() {
  judge::Piece piece;
  piece.name = "grad.w";
  piece.phase = Phase::kStep;
  piece.step = 1;
  piece.rank = 1;
  piece.global_shape = {2, 4};
  piece.dims = {{0, 1}, {3, 1, -1}};
  piece.strides = {4, 1};
  piece.golden = {3, 1, 0, 7, 5, 0};
  piece.actual = {6, 2, 0, 14, std::nan(""), 0};
  return piece;
}

inline judge::CaseResult example_mismatch() {
  const double infinity = std::numeric_limits<double>::infinity();
  judge::CaseResult result;
  result.spec = example_spec("tp/hostile \x02 \xfe/<name>", 1, 2);
  result.verdict = Verdict::kMismatch;
  result.kind = ResultKind::kValues;
  result.message = kHostileText;
  result.unexpected = kHostileText;
  result.replay = "./shardproof run 'x' --only \"y\"";
  result.worst_ratio = infinity;
  result.tensors_compared = 1;
  judge::Divergence divergence;
  divergence.tensor = "grad.w";
  divergence.phase = Phase::kStep;
  divergence.step = 1;
  divergence.kind = ResultKind::kValues;
  divergence.ranks = {1};
  divergence.worst = example_row("grad.w", 1, 0, std::nan(""));
  divergence.worst.actual_value = -infinity;
  divergence.likely = "summed over dp twice";
  result.divergence = divergence;
  judge::RankReport report;
  report.rank = 1;
  report.rows = {divergence.worst};
  report.metrics = {{"loss", std::nan("")}, {"note", kHostileText}, {"norms", {1.0, infinity}}};
  report.calls = {kHostileText};
  report.pieces = {example_piece()};
  result.reports.push_back(report);
  return result;
}

inline judge::CaseResult example_death() {
  judge::CaseResult result;
  result.spec = example_spec("faults/kill", 2, 1);
  result.verdict = Verdict::kFailed;
  result.kind = ResultKind::kDied;
  result.message = "rank 1 died: ended by signal 9";
  result.endings.push_back({.rank = 0,
                            .kind = ResultKind::kAborted,
                            .message = "rank 1 died",
                            .last_call = "barrier",
                            .bytes = ""});
  result.endings.push_back({.rank = 1,
                            .kind = ResultKind::kDied,
                            .message = "signal 9",
                            .last_call = "all_reduce dp x",
                            .bytes = "",
                            .printed = "loading\nNCCL <warn> no \xff route"});
  return result;
}

}  // namespace shardproof::sim::report
