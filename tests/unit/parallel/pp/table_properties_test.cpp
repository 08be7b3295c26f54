// Every table of up to 4 ranks, 3 chunks and 9 microbatches, run on paper.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "parallel/pp/simulate.h"
#include "tests/unit/parallel/pp/tables_text.h"

namespace shardproof::tests {
namespace {

using Schedule = PipelineSchedule;
using Kind = Action::Kind;

ActionCosts unit_costs(const Pipeline& pipeline) {
  return pipeline.splits_backward() ? ActionCosts{1, 1, 1} : ActionCosts{1, 2, 0};
}

std::vector<int64_t> microbatches_of(const std::vector<Action>& actions, Kind kind, int64_t chunk) {
  std::vector<int64_t> microbatches;
  for (const Action& action : actions) {
    if (action.kind == kind && action.chunk == chunk) microbatches.push_back(action.microbatch);
  }
  return microbatches;
}

TEST_CASE("each table has every action once, in the order of the gradients, and can run", "[pp]") {
  std::map<Schedule, int64_t> tables;
  each_pipeline([&](const Pipeline& pipeline, int64_t microbatches) {
    INFO(text_of(pipeline, microbatches));
    if (pipeline.ranks > 1 && (pipeline.schedule != Schedule::kInterleaved || pipeline.group > 0)) {
      ++tables[pipeline.schedule];
    }
    const auto all = pipeline_tables(pipeline, microbatches);
    for (const auto& actions : all) {
      check_actions(actions, microbatches, pipeline.chunks);
      for (int64_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
        auto backwards = microbatches_of(actions, Kind::kBackward, chunk);
        const auto weights = microbatches_of(actions, Kind::kWeights, chunk);
        const auto forwards = microbatches_of(actions, Kind::kForward, chunk);
        if (traits_of(pipeline.schedule).descends) {
          std::reverse(backwards.begin(), backwards.end());
        }
        CHECK(std::is_sorted(forwards.begin(), forwards.end()));
        CHECK(std::is_sorted(backwards.begin(), backwards.end()));
        CHECK(std::is_sorted(weights.begin(), weights.end()));
        CHECK(std::ssize(weights) == (pipeline.splits_backward() ? microbatches : 0));
      }
    }
    const Simulation run = simulate(pipeline.placement(), all, unit_costs(pipeline));
    CHECK(blocked_text(run.blocked).empty());
  });
  // p = 2, 3, 4 and m = 1 to 9; interleaved with every N, for which see the sizes in tables.h.
  CHECK(tables[Schedule::kGPipe] == 27);
  CHECK(tables[Schedule::k1F1B] == 27);
  CHECK(tables[Schedule::kInterleaved] == 92);
  CHECK(tables[Schedule::kBreadthFirst] == 81);
  CHECK(tables[Schedule::kZbV] == 27);
  CHECK(tables[Schedule::kDualPipeV] == 12);
}

TEST_CASE("a rank holds as many microbatches as its schedule allows", "[pp]") {
  each_pipeline([](const Pipeline& pipeline, int64_t microbatches) {
    INFO(text_of(pipeline, microbatches));
    const auto [schedule, p, v, group] = pipeline;
    const Simulation run = simulate(pipeline.placement(), pipeline_tables(pipeline, microbatches),
                                    unit_costs(pipeline));
    for (int64_t rank = 0; rank < p; ++rank) {
      const int64_t held = run.held[static_cast<size_t>(rank)];
      const int64_t warmup = 2 * (p - 1 - rank) + (v - 1) * (group == 0 ? p : group);
      if (schedule == Schedule::kGPipe) CHECK(held == microbatches);
      if (schedule == Schedule::k1F1B) CHECK(held == std::min(microbatches, p - rank));
      if (schedule == Schedule::kInterleaved) {
        CHECK(held == std::min(microbatches * v, warmup + 1));
      }
      if (schedule == Schedule::kBreadthFirst) CHECK(held == microbatches * v);
      if (schedule == Schedule::kZb1p && v == 1) CHECK(held == std::min(p, microbatches));
      if (schedule == Schedule::kZbV) CHECK(held <= 2 * p);
      if (schedule == Schedule::kZbV && microbatches >= 2 * p) CHECK(held == 2 * p);
      if (schedule == Schedule::kDualPipeV) CHECK(held == 2 * p + 1);
    }
  });
}

TEST_CASE("the time of a step is that of the papers", "[pp]") {
  int64_t legal = 0;
  each_pipeline([&](const Pipeline& pipeline, int64_t microbatches) {
    INFO(text_of(pipeline, microbatches));
    const auto [schedule, p, v, group] = pipeline;
    const auto tables = pipeline_tables(pipeline, microbatches);
    const Simulation run = simulate(pipeline.placement(), tables, unit_costs(pipeline));
    const auto work = static_cast<double>(3 * microbatches * v);
    for (const double idle : run.idle) CHECK(idle == run.makespan - work);
    if (schedule == Schedule::kGPipe || schedule == Schedule::k1F1B ||
        schedule == Schedule::kInterleaved) {
      if (p > 1 && (schedule != Schedule::kInterleaved || group > 0)) ++legal;
      CHECK(run.makespan == static_cast<double>(3 * (microbatches * v + p - 1)));
      const double part =
          static_cast<double>(p - 1) / static_cast<double>(microbatches * v + p - 1);
      CHECK(*bubble_formula(pipeline, microbatches, {1, 2, 0}) == Approx(part));
    }
    if (schedule == Schedule::kZb1p && microbatches >= p) {
      CHECK(run.makespan == work + static_cast<double>(p - 1));
    }
    // Other costs, with which a formula that weighs them wrongly misses.
    const ActionCosts costs =
        pipeline.splits_backward() ? ActionCosts{2, 3, 1} : ActionCosts{2, 5, 0};
    const Simulation other = simulate(pipeline.placement(), tables, costs);
    const auto formula = idle_formula(pipeline, microbatches, costs);
    if (formula) {
      for (const double idle : other.idle) CHECK(idle == *formula);
    }
  });
  CHECK(legal == 146);
}

TEST_CASE("examples of times", "[pp]") {
  const auto time = [](const Pipeline& pipeline, int64_t microbatches) {
    const auto tables = pipeline_tables(pipeline, microbatches);
    return simulate(pipeline.placement(), tables, unit_costs(pipeline)).makespan;
  };
  // 24 units of work on each rank (Qi et al. 2023: (p-1)(F+B-W) idle for (p-1)(F+B+W)).
  CHECK(time({Schedule::kZb1p, 4, 1}, 8) == 27);
  CHECK(time({Schedule::k1F1B, 4, 1}, 8) == 33);
  CHECK(time({Schedule::kZbV, 4, 2}, 8) == 51);
  CHECK(time({Schedule::kDualPipeV, 4, 2}, 8) == 51);
  CHECK(*idle_formula({Schedule::kZb1p, 4, 1}, 8, {1, 1, 1}) == 3);
  CHECK_FALSE(idle_formula({Schedule::kZb1p, 4, 1}, 3, {1, 1, 1}));
  CHECK_FALSE(idle_formula({Schedule::kZbV, 4, 2}, 8, {1, 1, 1}));
  CHECK_FALSE(bubble_formula({Schedule::kBreadthFirst, 4, 2}, 3, {1, 2, 0}));
  const Simulation run =
      simulate({2, 1}, pipeline_tables({Schedule::k1F1B, 2, 1}, 2), ActionCosts{1, 2, 0});
  CHECK(run.starts == std::vector<std::vector<double>>{{0, 1, 4, 7}, {1, 2, 4, 5}});
}

TEST_CASE("forwards alone can run with every number of microbatches", "[pp]") {
  for (const std::string& name : all_names<Schedule>()) {
    for (int64_t ranks = 1; ranks <= 4; ++ranks) {
      for (int64_t chunks = 1; chunks <= 3; ++chunks) {
        for (int64_t microbatches = 1; microbatches <= 9; ++microbatches) {
          const Pipeline pipeline{enum_of<Schedule>(name), ranks, chunks, 0};
          try {
            check_schedule(pipeline);
          } catch (const Error&) {
            continue;
          }
          INFO(text_of(pipeline, microbatches));
          const auto tables = forward_tables(pipeline, microbatches);
          for (const auto& actions : tables) {
            CHECK(std::ssize(actions) == microbatches * chunks);
            for (int64_t chunk = 0; chunk < chunks; ++chunk) {
              const auto forwards = microbatches_of(actions, Kind::kForward, chunk);
              CHECK(std::ssize(forwards) == microbatches);
              CHECK(std::is_sorted(forwards.begin(), forwards.end()));
            }
          }
          const Simulation run = simulate(pipeline.placement(), tables, {1, 0, 0});
          CHECK(blocked_text(run.blocked).empty());
          if (pipeline.placement().shape == Placement::Shape::kLoop &&
              (chunks == 1 || microbatches % ranks == 0)) {
            CHECK(run.makespan == static_cast<double>(microbatches * chunks + ranks - 1));
          }
        }
      }
    }
  }
}

TEST_CASE("a table that waits for itself is named, action by action", "[pp]") {
  const auto forward = [](int64_t i, int64_t chunk) { return Action{Kind::kForward, i, chunk}; };
  // Rank 1 begins with its second chunk, which needs the first one.
  const std::vector<std::vector<Action>> tables = {{forward(0, 0), forward(0, 1)},
                                                   {forward(0, 1), forward(0, 0)}};
  const Simulation run = simulate({2, 2, Placement::Shape::kLoop}, tables, {});
  CHECK(run.starts == std::vector<std::vector<double>>{{0}, {}});
  CHECK((run.blocked == std::vector<BlockedAction>{{0, forward(0, 1), 1, forward(0, 0)},
                                                   {1, forward(0, 1), 0, forward(0, 1)}}));
  CHECK(blocked_text(run.blocked) ==
        "F of microbatch 0 in chunk 1 on rank 0 needs F of microbatch 0 in chunk 0 on rank 1; "
        "F of microbatch 0 in chunk 1 on rank 1 needs F of microbatch 0 in chunk 1 on rank 0");

  // A backward before its own forward; ranks that wait for the cycle are not a part of it.
  const Action backward{Kind::kBackward, 0, 0};
  const std::vector<std::vector<Action>> early = {{forward(0, 0), backward},
                                                  {backward, forward(0, 0)}};
  CHECK((simulate({2, 1, Placement::Shape::kLoop}, early, {}).blocked ==
         std::vector<BlockedAction>{{1, backward, 1, forward(0, 0)}}));

  // An action that no table has.
  const std::vector<std::vector<Action>> incomplete = {{}, {forward(0, 0)}};
  CHECK((simulate({2, 1, Placement::Shape::kLoop}, incomplete, {}).blocked ==
         std::vector<BlockedAction>{{1, forward(0, 0), 0, forward(0, 0)}}));
}

// For tests/frameworks/pipelining_test.py. "F3@2" is the forward of microbatch 3 on stage 2.
TEST_CASE("print every table", "[.print]") {
  each_pipeline([](const Pipeline& pipeline, int64_t microbatches) {
    for (int64_t rank = 0; rank < pipeline.ranks; ++rank) {
      fmt::print("table {} {} {} {} {} rank {}:", pipeline.schedule, pipeline.ranks,
                 pipeline.chunks, microbatches, pipeline.group, rank);
      for (const Action& action : pipeline_actions(pipeline, microbatches, rank)) {
        fmt::print(" {}{}@{}", text_of(action).front(), action.microbatch,
                   pipeline.placement().stage_of({rank, action.chunk}));
      }
      fmt::print("\n");
    }
  });
}

}  // namespace
}  // namespace shardproof::tests
