#include "parallel/pp/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "base/count_of.h"
#include "base/error.h"
#include "base/pipeline_schedules.h"

namespace shardproof {
namespace {

using Actions = std::vector<Action>;
using Kind = Action::Kind;

// Actions of each kind and chunk in ascending order of microbatches.
class AscendingTable {
 public:
  explicit AscendingTable(int64_t chunks) : next_(static_cast<size_t>(3 * chunks), 0) {}
  void forward(int64_t chunk) { add(Kind::kForward, chunk); }
  void backward(int64_t chunk) {
    open_.push_back({Kind::kWeights, add(Kind::kBackward, chunk), chunk});
  }
  // The backward and directly behind it its weight gradients.
  void whole_backward(int64_t chunk) {
    const int64_t microbatch = add(Kind::kBackward, chunk);
    actions_.push_back({Kind::kWeights, microbatch, chunk});
  }
  // The weight gradients whose backward is the oldest, of all chunks or of one. Returns whether any
  // were left.
  bool oldest_weights() {
    if (open_.empty()) return false;
    actions_.push_back(open_.front());
    open_.pop_front();
    return true;
  }
  bool oldest_weights(int64_t chunk) {
    const auto found = std::ranges::find(open_, chunk, &Action::chunk);
    if (found == open_.end()) return false;
    actions_.push_back(*found);
    open_.erase(found);
    return true;
  }
  int64_t forwards(int64_t chunk) const { return next_[static_cast<size_t>(3 * chunk)]; }
  Actions take() { return std::move(actions_); }

 private:
  int64_t add(Kind kind, int64_t chunk) {
    const int64_t microbatch = next_[static_cast<size_t>(3 * chunk + static_cast<int64_t>(kind))]++;
    actions_.push_back({kind, microbatch, chunk});
    return microbatch;
  }

  Actions actions_;
  std::vector<int64_t> next_;  // microbatch, by chunk and kind
  std::deque<Action> open_;    // weight gradients whose backward is done
};

// N as it is configured.
int64_t group_or_ranks(const Pipeline& pipeline) {
  return pipeline.group == 0 ? pipeline.ranks : pipeline.group;
}

// N, at most the number of microbatches.
int64_t group_of(const Pipeline& pipeline, int64_t microbatches) {
  return std::min(group_or_ranks(pipeline), microbatches);
}

// The chunk of each forward: group by group, within a group chunk by chunk.
std::vector<int64_t> chunks_by_group(const Pipeline& pipeline, int64_t microbatches) {
  const int64_t group = group_of(pipeline, microbatches);
  std::vector<int64_t> chunks;
  for (int64_t first = 0; first < microbatches; first += group) {
    for (int64_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
      chunks.insert(chunks.end(), static_cast<size_t>(std::min(group, microbatches - first)),
                    chunk);
    }
  }
  return chunks;
}

// gpipe and bfs.
Actions chunk_by_chunk(const Pipeline& pipeline, int64_t microbatches, bool descending) {
  Actions actions;
  for (int64_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
    for (int64_t i = 0; i < microbatches; ++i) actions.push_back({Kind::kForward, i, chunk});
  }
  for (int64_t chunk = pipeline.chunks - 1; chunk >= 0; --chunk) {
    for (int64_t i = 0; i < microbatches; ++i) {
      actions.push_back({Kind::kBackward, descending ? microbatches - 1 - i : i, chunk});
    }
  }
  return actions;
}

// `warmup` forwards, pairs of a forward and the oldest backward, then the other backwards.
// `weights_after`: with a split backward, after which backward weight gradients follow.
Actions one_forward_one_backward(const Pipeline& pipeline, int64_t microbatches, int64_t warmup,
                                 int64_t weights_after) {
  const std::vector<int64_t> chunks = chunks_by_group(pipeline, microbatches);
  const auto all = std::ssize(chunks);
  const int64_t first = std::min(warmup, all);
  AscendingTable table(pipeline.chunks);
  for (int64_t i = 0; i < first; ++i) table.forward(chunks[static_cast<size_t>(i)]);
  for (int64_t i = 0; i < all; ++i) {
    if (first + i < all) table.forward(chunks[static_cast<size_t>(first + i)]);
    const int64_t chunk = pipeline.chunks - 1 - chunks[static_cast<size_t>(i)];
    table.backward(chunk);
    if (pipeline.splits_backward() && i >= weights_after) table.oldest_weights();
  }
  while (pipeline.splits_backward() && table.oldest_weights()) {
  }
  return table.take();
}

Actions zbv(int64_t ranks, int64_t microbatches, int64_t rank) {
  const int64_t count = std::max(microbatches, 2 * ranks - 1);
  AscendingTable table(2);
  for (int64_t i = 0; i < 2 * (ranks - rank) - 1; ++i) table.forward(0);
  for (int64_t i = 0; i < rank; ++i) {
    table.forward(1);
    table.forward(0);
  }
  for (int64_t i = 0; i < ranks - rank; ++i) {
    table.forward(1);
    table.whole_backward(1);
  }
  while (table.forwards(1) < count) {
    if (table.forwards(0) < count) table.forward(0);
    table.whole_backward(0);
    table.forward(1);
    table.whole_backward(1);
  }
  for (int64_t i = 0; i < rank; ++i) {
    table.backward(0);
    table.backward(1);
  }
  for (int64_t i = 0; i < ranks - rank; ++i) {
    table.backward(0);
    table.oldest_weights(0);
  }
  for (const int64_t chunk : {1, 0}) {
    while (table.oldest_weights(chunk)) {
    }
  }
  Actions actions = table.take();
  std::erase_if(actions, [&](const Action& action) { return action.microbatch >= microbatches; });
  return actions;
}

Actions dualpipev(int64_t ranks, int64_t microbatches, int64_t rank) {
  const int64_t later = ranks - 1 - rank;
  AscendingTable table(2);
  for (int64_t i = 0; i < 2 * later; ++i) table.forward(0);
  for (int64_t i = 0; i < rank + 1; ++i) {
    table.forward(0);
    table.forward(1);
  }
  for (int64_t i = 0; i < later; ++i) {
    table.backward(1);
    table.oldest_weights();
    table.forward(1);
  }
  // The main steps. A forward and the backward behind it overlap there.
  for (int64_t i = 0; i < microbatches - 2 * ranks + rank + 1; ++i) {
    table.forward(0);
    table.whole_backward(1);
    table.forward(1);
    table.whole_backward(0);
  }
  for (int64_t i = 0; i < later; ++i) {
    table.whole_backward(1);
    table.forward(1);
    table.whole_backward(0);
  }
  // Of these 2 (rank + 1) backwards, chunks 1 and 0 in turn, the second half is split.
  for (int64_t i = 0; i < 2 * (rank + 1); ++i) {
    const int64_t chunk = i % 2 == 0 ? 1 : 0;
    if (i > rank) {
      table.backward(chunk);
    } else {
      table.whole_backward(chunk);
    }
  }
  for (int64_t i = 0; i < later; ++i) {
    table.oldest_weights();
    table.backward(0);
  }
  while (table.oldest_weights()) {
  }
  return table.take();
}

// The table of each schedule, for a number of microbatches that it takes. Its forwards are those of
// a pass without gradients, for all numbers that are not too few.
Actions table_of(const Pipeline& pipeline, int64_t microbatches, int64_t rank) {
  const int64_t later = pipeline.ranks - 1 - rank;
  const int64_t whole_groups = (pipeline.chunks - 1) * group_of(pipeline, microbatches);
  switch (pipeline.schedule) {
    case PipelineSchedule::kGPipe:
      return chunk_by_chunk(pipeline, microbatches, /*descending=*/false);
    case PipelineSchedule::kBreadthFirst:
      return chunk_by_chunk(pipeline, microbatches, /*descending=*/true);
    case PipelineSchedule::k1F1B:
      return one_forward_one_backward(pipeline, microbatches, later, 0);
    case PipelineSchedule::kInterleaved:
      return one_forward_one_backward(pipeline, microbatches, 2 * later + whole_groups, 0);
    case PipelineSchedule::kZb1p:
      return one_forward_one_backward(pipeline, microbatches, later + whole_groups, rank);
    case PipelineSchedule::kZbV:
      return zbv(pipeline.ranks, microbatches, rank);
    case PipelineSchedule::kDualPipeV:
      return dualpipev(pipeline.ranks, microbatches, rank);
  }
  return {};
}

bool has_groups(const Pipeline& pipeline) {
  return traits_of(pipeline.schedule).groups && pipeline.chunks > 1;
}

void check_at_least_one(const char* plural, int64_t count) {
  if (count >= 1) return;
  throw_bad_input(fmt::format("a pipeline with {} {}", count, plural), "give 1 or more");
}

void check_chunks(const Pipeline& pipeline) {
  const ScheduleTraits& traits = traits_of(pipeline.schedule);
  const int64_t least = traits.least_chunks;
  if (pipeline.chunks >= least && pipeline.chunks <= traits.most_chunks) return;
  throw_refused(
      fmt::format("the schedule {} takes {} of the model on each rank, not {}", pipeline.schedule,
                  least == traits.most_chunks ? count_of(least, "chunk")
                                              : fmt::format("{} or more chunks", least),
                  pipeline.chunks),
      traits.fix_of_chunks);
}

// Whether groups of N take that many microbatches: the last one is full or has at least as many
// microbatches as there are ranks. A smaller one stalls: 10 microbatches on 4 ranks with 2 chunks
// in groups of 4 take 79 units of time instead of 69 (F = 1, B = 2).
bool fits_groups(int64_t ranks, int64_t microbatches, int64_t group) {
  const int64_t last = microbatches % group;
  return group >= ranks && group <= microbatches && (last == 0 || last >= ranks);
}

int64_t fewest_microbatches(const Pipeline& pipeline) {
  return std::max<int64_t>(1, traits_of(pipeline.schedule).microbatches_of_rank * pipeline.ranks);
}

// Groups that take that many microbatches: the smallest ones, for a message.
std::string fitting_groups(int64_t ranks, int64_t microbatches) {
  constexpr size_t kMost = 4;
  std::vector<int64_t> groups;
  for (int64_t group = ranks; group <= microbatches && groups.size() < kMost; ++group) {
    if (fits_groups(ranks, microbatches, group)) groups.push_back(group);
  }
  return fmt::format("{}", fmt::join(groups, " or "));
}

// The nearest numbers of microbatches that the schedule takes, for a message.
std::string fitting_microbatches(const Pipeline& pipeline, int64_t microbatches) {
  int64_t before = microbatches - 1;
  while (before > 0 && !takes_microbatches(pipeline, before)) --before;
  const int64_t after = next_microbatches(pipeline, microbatches);
  return before == 0 ? fmt::format("{}", after) : fmt::format("{} or {}", before, after);
}

void check_rank(const Pipeline& pipeline, int64_t rank) {
  SHARDPROOF_ASSERT(rank >= 0 && rank < pipeline.ranks,
                    fmt::format("rank {} of a pipeline of {} ranks", rank, pipeline.ranks));
}

template <class ActionsOfRank>
std::vector<Actions> of_all_ranks(const Pipeline& pipeline, const ActionsOfRank& actions_of) {
  std::vector<Actions> tables;
  for (int64_t rank = 0; rank < pipeline.ranks; ++rank) tables.push_back(actions_of(rank));
  return tables;
}

}  // namespace

void check_schedule(const Pipeline& pipeline) {
  check_at_least_one("ranks", pipeline.ranks);
  check_at_least_one("chunks", pipeline.chunks);
  if (pipeline.group < 0) {
    throw_bad_input(fmt::format("a group of {} microbatches", pipeline.group),
                    "give 1 or more, or 0 for as many as the pipeline has ranks");
  }
  if (has_groups(pipeline) && pipeline.group != 0 && pipeline.group < pipeline.ranks) {
    throw_refused(
        fmt::format("the schedule {} on {} ranks takes groups of {} microbatches or more, not {}",
                    pipeline.schedule, pipeline.ranks, pipeline.ranks, pipeline.group),
        fmt::format("give {} or more, or 0 for {}", pipeline.ranks, pipeline.ranks));
  }
  check_chunks(pipeline);
}

bool takes_microbatches(const Pipeline& pipeline, int64_t microbatches) {
  if (microbatches < fewest_microbatches(pipeline)) return false;
  return !has_groups(pipeline) || microbatches < pipeline.ranks ||
         fits_groups(pipeline.ranks, microbatches, group_or_ranks(pipeline));
}

int64_t next_microbatches(const Pipeline& pipeline, int64_t microbatches) {
  check_schedule(pipeline);
  const int64_t count = std::max(microbatches, fewest_microbatches(pipeline));
  if (takes_microbatches(pipeline, count)) return count;
  const int64_t group = group_or_ranks(pipeline);
  return count < group ? group : count - count % group + pipeline.ranks;
}

void check_microbatches(const Pipeline& pipeline, int64_t microbatches) {
  check_schedule(pipeline);
  check_at_least_one("microbatches", microbatches);
  if (takes_microbatches(pipeline, microbatches)) return;
  const int64_t fewest = fewest_microbatches(pipeline);
  if (microbatches < fewest) {
    throw_refused(
        fmt::format("the schedule {} on {} takes {} microbatches or more, not {}",
                    pipeline.schedule, count_of(pipeline.ranks, "rank"), fewest, microbatches),
        fmt::format("give {} or more microbatches, or take {}", fewest,
                    name_of(traits_of(pipeline.schedule).with_fewer)));
  }
  const int64_t group = group_or_ranks(pipeline);
  throw_refused(
      group > microbatches
          ? fmt::format("groups of {} microbatches are larger than the {} of a step", group,
                        microbatches)
          : fmt::format("{} microbatches in groups of {} leave a last group of {}, and one that is "
                        "not full takes {} or more, as many as the pipeline has ranks",
                        microbatches, group, microbatches % group, pipeline.ranks),
      fmt::format("give groups of {}, or {} microbatches",
                  fitting_groups(pipeline.ranks, microbatches),
                  fitting_microbatches(pipeline, microbatches)));
}

Actions pipeline_actions(const Pipeline& pipeline, int64_t microbatches, int64_t rank) {
  check_microbatches(pipeline, microbatches);
  check_rank(pipeline, rank);
  return table_of(pipeline, microbatches, rank);
}

std::vector<Actions> pipeline_tables(const Pipeline& pipeline, int64_t microbatches) {
  return of_all_ranks(pipeline,
                      [&](int64_t rank) { return pipeline_actions(pipeline, microbatches, rank); });
}

Actions forward_actions(const Pipeline& pipeline, int64_t microbatches, int64_t rank) {
  check_schedule(pipeline);
  check_at_least_one("microbatches", microbatches);
  check_rank(pipeline, rank);
  Pipeline ordered = pipeline;
  if (microbatches < fewest_microbatches(pipeline)) {
    ordered.schedule = traits_of(pipeline.schedule).with_fewer;
  }
  Actions actions = table_of(ordered, microbatches, rank);
  std::erase_if(actions, [](const Action& action) { return action.kind != Kind::kForward; });
  return actions;
}

std::vector<Actions> forward_tables(const Pipeline& pipeline, int64_t microbatches) {
  return of_all_ranks(pipeline,
                      [&](int64_t rank) { return forward_actions(pipeline, microbatches, rank); });
}

}  // namespace shardproof
