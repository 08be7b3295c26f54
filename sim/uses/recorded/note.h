// What of two recorded runs was not compared, and why.
#pragma once

#include <string>

#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

inline constexpr const char* kNotWhole =
    "the reference's pieces do not make it whole, or are of single microbatches";

// "not compared, because only this run recorded it: a, b and 5 more; ..", or "".
std::string note_of(const RecordedRun& run, const Reference& golden);

// Of a tensor whose name the reference lacks: "; its values are those of param.embed.weight (a tied
// copy keeps that name)" of a matrix that it has to the bit, else "; the nearest one is <near>".
std::string also_named(const RecordedPiece& piece, const GoldenRecord& golden,
                       const std::string& near);

}  // namespace shardproof::sim::recorded
