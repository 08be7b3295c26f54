// The tables of a pipeline: what each rank does in a step, in order. Pure functions of the schedule
// and its sizes: p ranks, v chunks on each, m microbatches, and groups of N microbatches.
//
//   1f1b, p = 2, m = 3    rank 0: F0 F1 B0 F2 B1 B2
//                         rank 1: F0 B0 F1 B1 F2 B2
//
// Every stage has each microbatch once in F, then in B, and then, where the schedule splits the
// backward, in W. Each stage adds its weight gradients in ascending order of the microbatches; bfs
// adds them in descending order.
//
// Sources: GPipe arXiv:1811.06965, with backwards in ascending order as PyTorch's ScheduleGPipe has
// them; 1f1b: PipeDream-Flush arXiv:2006.09503; interleaved: Narayanan et al. arXiv:2104.04473 and
// NVIDIA/Megatron-LM megatron/core/pipeline_parallel/schedules.py, get_schedule_table; bfs:
// arXiv:2211.05953; zb1p (ZB-H1) and zbv: arXiv:2401.10241; dualpipev: deepseek-ai/DualPipe. All
// but interleaved in the order of pytorch/pytorch torch/distributed/pipelining/schedules.py.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pp/placement.h"
#include "parallel/style/action.h"

namespace shardproof {

// Throws Error(kBadInput) for sizes below 1. Throws Error(kRefused) for a number of chunks that the
// schedule does not take (gpipe and 1f1b take 1, interleaved 2 or more, zbv and dualpipev 2), and
// for a group of fewer microbatches than ranks.
void check_schedule(const Pipeline& pipeline);

// Throws as check_schedule does, and Error(kRefused) with the numbers that work if the schedule
// does not take so many microbatches. dualpipev takes 2p or more. Interleaved takes p or more that
// fill groups of N, or leave at least p for the last group; N is at most m. That holds for zb1p
// with two or more chunks too, but there fewer than p microbatches are one group.
void check_microbatches(const Pipeline& pipeline, int64_t microbatches);
// The same as an answer, for a schedule that check_schedule takes.
bool takes_microbatches(const Pipeline& pipeline, int64_t microbatches);
// The smallest number that the schedule takes and that is not below `microbatches`, to which a
// batch is filled with dummies.
int64_t next_microbatches(const Pipeline& pipeline, int64_t microbatches);

// The table of one rank. Throws as check_microbatches does.
std::vector<Action> pipeline_actions(const Pipeline& pipeline, int64_t microbatches, int64_t rank);
// The tables of all ranks.
std::vector<std::vector<Action>> pipeline_tables(const Pipeline& pipeline, int64_t microbatches);

// A pass without gradients (scores, evaluation): the forwards alone, in the order of the table.
// Takes every number of microbatches; where the table does not, a loop has smaller groups and a V
// the order of zbv. Throws as check_schedule does.
std::vector<Action> forward_actions(const Pipeline& pipeline, int64_t microbatches, int64_t rank);
std::vector<std::vector<Action>> forward_tables(const Pipeline& pipeline, int64_t microbatches);

}  // namespace shardproof
