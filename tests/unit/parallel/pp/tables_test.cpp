// Tables of pipelines against the figures of the papers, and what is refused.
#include "parallel/pp/tables.h"

#include <catch2/catch.hpp>

#include "tests/support/said_by.h"
#include "tests/unit/parallel/pp/tables_text.h"

namespace shardproof::tests {
namespace {

using Schedule = PipelineSchedule;

std::string table(Schedule schedule, int64_t ranks, int64_t chunks, int64_t microbatches,
                  int64_t rank, int64_t group = 0) {
  return text_of(pipeline_actions({schedule, ranks, chunks, group}, microbatches, rank));
}

std::string refusal(const Pipeline& pipeline, int64_t microbatches) {
  CHECK_FALSE((microbatches > 0 && takes_microbatches(pipeline, microbatches)));
  return told_by(ErrorKind::kRefused, [&] { pipeline_actions(pipeline, microbatches, 0); });
}

std::string refused_schedule(const Pipeline& pipeline) {
  return told_by(ErrorKind::kRefused, [&] { check_schedule(pipeline); });
}

TEST_CASE("stages on ranks, in a loop and in a V", "[pp]") {
  const Placement loop{3, 2, Placement::Shape::kLoop};
  const Placement v{3, 2, Placement::Shape::kV};
  const std::vector<StagePlace> on_loop = {{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {2, 1}};
  const std::vector<StagePlace> on_v = {{0, 0}, {1, 0}, {2, 0}, {2, 1}, {1, 1}, {0, 1}};
  for (int64_t stage = 0; stage < 6; ++stage) {
    CHECK(loop.place_of(stage) == on_loop[static_cast<size_t>(stage)]);
    CHECK(v.place_of(stage) == on_v[static_cast<size_t>(stage)]);
    CHECK(loop.stage_of(loop.place_of(stage)) == stage);
    CHECK(v.stage_of(v.place_of(stage)) == stage);
    CHECK(loop.sends_after(stage) == (stage < 5));
    CHECK(v.sends_after(stage) == (stage != 2 && stage != 5));
  }
  CHECK_THROWS_AS(v.place_of(6), InternalError);
  CHECK_THROWS_AS(v.stage_of({3, 0}), InternalError);
  CHECK((Pipeline{Schedule::kZbV, 3, 2}.placement() == v));
  CHECK((Pipeline{Schedule::kDualPipeV, 3, 2}.placement() == v));
  CHECK((Pipeline{Schedule::kZb1p, 3, 2}.placement() == loop));
  // One rank hands all tensors over without a message.
  const Placement one{1, 3, Placement::Shape::kLoop};
  for (int64_t stage = 0; stage < 3; ++stage) CHECK_FALSE(one.sends_after(stage));
}

TEST_CASE("schedules have names", "[pp]") {
  CHECK(enum_of<Schedule>("1f1b") == Schedule::k1F1B);
  CHECK_THROWS_WITH(enum_of<Schedule>("interleave"), Catch::Contains("did you mean interleaved?"));
}

// GPipe, figure 2c, with backwards in ascending order.
TEST_CASE("gpipe with 4 ranks and 4 microbatches", "[pp]") {
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(table(Schedule::kGPipe, 4, 1, 4, rank) == "F0 F1 F2 F3 B0 B1 B2 B3");
  }
}

// Narayanan et al. 2021, figure 4, above. Its microbatches 1 to 8 are 0 to 7 here.
TEST_CASE("1f1b with 4 ranks and 8 microbatches", "[pp]") {
  CHECK(table(Schedule::k1F1B, 4, 1, 8, 0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  CHECK(table(Schedule::k1F1B, 4, 1, 8, 1) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  CHECK(table(Schedule::k1F1B, 4, 1, 8, 2) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  CHECK(table(Schedule::k1F1B, 4, 1, 8, 3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
  // Fewer microbatches than ranks.
  CHECK(table(Schedule::k1F1B, 4, 1, 2, 0) == "F0 F1 B0 B1");
  CHECK(table(Schedule::k1F1B, 4, 1, 2, 3) == "F0 B0 F1 B1");
}

// Figure 4, below: two chunks on each rank, the second one in light colors.
TEST_CASE("interleaved with 4 ranks, 2 chunks and 8 microbatches", "[pp]") {
  CHECK(table(Schedule::kInterleaved, 4, 2, 8, 0) ==
        "F0 F1 F2 F3 F0' F1' F2' F3' F4 F5 F6 B0' F7 B1' F4' B2' F5' B3' F6' B0 F7' B1 "
        "B2 B3 B4' B5' B6' B7' B4 B5 B6 B7");
  CHECK(table(Schedule::kInterleaved, 4, 2, 8, 1) ==
        "F0 F1 F2 F3 F0' F1' F2' F3' F4 B0' F5 B1' F6 B2' F7 B3' F4' B0 F5' B1 F6' B2 F7' B3 "
        "B4' B5' B6' B7' B4 B5 B6 B7");
  CHECK(table(Schedule::kInterleaved, 4, 2, 8, 3) ==
        "F0 F1 F2 F3 F0' B0' F1' B1' F2' B2' F3' B3' F4 B0 F5 B1 F6 B2 F7 B3 "
        "F4' B4' F5' B5' F6' B6' F7' B7' B4 B5 B6 B7");
}

// The example of Megatron-LM's get_schedule_table: microbatches 0 1 2 0 1 2 3 4 3 4 in chunks
// 0 0 0 1 1 1 0 0 1 1.
TEST_CASE("interleaved with a group larger than the pipeline and a smaller last group", "[pp]") {
  CHECK(text_of(forward_actions({Schedule::kInterleaved, 2, 2, 3}, 5, 0)) ==
        "F0 F1 F2 F0' F1' F2' F3 F4 F3' F4'");
  CHECK(table(Schedule::kInterleaved, 2, 2, 5, 0, 3) ==
        "F0 F1 F2 F0' F1' F2' B0' F3 B1' F4 B2' F3' B0 F4' B1 B2 B3' B4' B3 B4");
  CHECK(table(Schedule::kInterleaved, 2, 2, 5, 1, 3) ==
        "F0 F1 F2 F0' B0' F1' B1' F2' B2' F3 B0 F4 B1 F3' B2 F4' B3' B4' B3 B4");
}

TEST_CASE("bfs runs its backwards in descending order", "[pp]") {
  for (int64_t rank = 0; rank < 2; ++rank) {
    CHECK(table(Schedule::kBreadthFirst, 2, 2, 3, rank) ==
          "F0 F1 F2 F0' F1' F2' B2' B1' B0' B2 B1 B0");
  }
}

// Qi et al. 2023, figure 3.
TEST_CASE("zb1p with 4 ranks and 8 microbatches", "[pp]") {
  CHECK(table(Schedule::kZb1p, 4, 1, 8, 0) ==
        "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7");
  CHECK(table(Schedule::kZb1p, 4, 1, 8, 2) ==
        "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7");
  CHECK(table(Schedule::kZb1p, 4, 1, 8, 3) ==
        "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7");
}

TEST_CASE("zbv and dualpipev with 2 ranks", "[pp]") {
  CHECK(table(Schedule::kZbV, 2, 2, 3, 0) ==
        "F0 F1 F2 F0' B0' W0' F1' B1' W1' B0 W0 F2' B2' W2' B1 W1 B2 W2");
  CHECK(table(Schedule::kZbV, 2, 2, 3, 1) ==
        "F0 F0' F1 F1' B0' W0' F2 B0 W0 F2' B1' W1' B1 B2' B2 W1 W2' W2");
  // The list of 3 microbatches without the last one.
  CHECK(table(Schedule::kZbV, 2, 2, 2, 1) == "F0 F0' F1 F1' B0' W0' B0 W0 B1' W1' B1 W1");
  CHECK(table(Schedule::kDualPipeV, 2, 2, 4, 0) ==
        "F0 F1 F2 F0' B0' W0' F1' F3 B1' W1' F2' B0 W0 B2' W2' F3' B1 W1 B3' W3' B2 W2 B3 W3");
  CHECK(table(Schedule::kDualPipeV, 2, 2, 4, 1) ==
        "F0 F0' F1 F1' F2 B0' W0' F2' B0 W0 F3 B1' W1' F3' B1 W1 B2' W2' B2 W2 B3' B3 W3' W3");
}

TEST_CASE("forwards alone", "[pp]") {
  const auto forwards = [](const Pipeline& pipeline, int64_t microbatches, int64_t rank) {
    return text_of(forward_actions(pipeline, microbatches, rank));
  };
  for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kZb1p}) {
    CHECK(forwards({schedule, 3, 1}, 4, 1) == "F0 F1 F2 F3");
  }
  CHECK(forwards({Schedule::kBreadthFirst, 2, 2}, 3, 0) == "F0 F1 F2 F0' F1' F2'");
  // Numbers of microbatches that the tables of a step do not take.
  CHECK(forwards({Schedule::kInterleaved, 2, 2}, 3, 0) == "F0 F1 F0' F1' F2 F2'");
  CHECK(forwards({Schedule::kInterleaved, 4, 2}, 1, 3) == "F0 F0'");
  CHECK(forwards({Schedule::kZbV, 2, 2}, 4, 0) == "F0 F1 F2 F0' F1' F3 F2' F3'");
  CHECK(forwards({Schedule::kDualPipeV, 2, 2}, 4, 0) == "F0 F1 F2 F0' F1' F3 F2' F3'");
  CHECK(forwards({Schedule::kDualPipeV, 2, 2}, 1, 1) == "F0 F0'");
}

TEST_CASE("numbers of chunks and groups that no schedule takes are refused", "[pp]") {
  CHECK(refused_schedule({Schedule::kGPipe, 2, 2}) ==
        "the schedule gpipe takes 1 chunk of the model on each rank, not 2; give 1 chunk, or take "
        "bfs, which takes several");
  CHECK(refused_schedule({Schedule::k1F1B, 2, 3}) ==
        "the schedule 1f1b takes 1 chunk of the model on each rank, not 3; give 1 chunk, or take "
        "interleaved, which takes several");
  CHECK(refused_schedule({Schedule::kInterleaved, 2, 1}) ==
        "the schedule interleaved takes 2 or more chunks of the model on each rank, not 1; give 2 "
        "or more chunks, or take 1f1b for 1");
  CHECK(refused_schedule({Schedule::kZbV, 2, 1}) ==
        "the schedule zbv takes 2 chunks of the model on each rank, not 1; give 2 chunks, or take "
        "zb1p, which takes any number");
  CHECK(refused_schedule({Schedule::kDualPipeV, 2, 3}) ==
        "the schedule dualpipev takes 2 chunks of the model on each rank, not 3; give 2 chunks, or "
        "take zb1p, which takes any number");
  CHECK(refused_schedule({Schedule::kInterleaved, 4, 2, 3}) ==
        "the schedule interleaved on 4 ranks takes groups of 4 microbatches or more, not 3; give 4 "
        "or more, or 0 for 4");
  CHECK(refused_schedule({Schedule::kZb1p, 4, 2, 3}) ==
        "the schedule zb1p on 4 ranks takes groups of 4 microbatches or more, not 3; give 4 or "
        "more, or 0 for 4");
  CHECK(refused_schedule({Schedule::kZb1p, 4, 1}) == "");
  CHECK(refused_schedule({Schedule::kBreadthFirst, 4, 1}) == "");
  for (const Pipeline& pipeline :
       {Pipeline{Schedule::k1F1B, 0, 1}, Pipeline{Schedule::kBreadthFirst, 2, 0},
        Pipeline{Schedule::kInterleaved, 2, 2, -1}}) {
    CHECK_THROWS_AS(check_schedule(pipeline), Error);
  }
  CHECK_THROWS_WITH(check_schedule({Schedule::k1F1B, 0, 1}),
                    "a pipeline with 0 ranks; give 1 or more");
  CHECK_THROWS_WITH(check_microbatches({Schedule::k1F1B, 2, 1}, 0),
                    "a pipeline with 0 microbatches; give 1 or more");
  CHECK_THROWS_AS(pipeline_actions({Schedule::k1F1B, 2, 1}, 1, 2), InternalError);
}

TEST_CASE("numbers of microbatches that a schedule does not take are refused", "[pp]") {
  CHECK(refusal({Schedule::kInterleaved, 4, 2}, 3) ==
        "the schedule interleaved on 4 ranks takes 4 microbatches or more, not 3; give 4 or more "
        "microbatches, or take bfs");
  CHECK(refusal({Schedule::kInterleaved, 4, 2}, 10) ==
        "10 microbatches in groups of 4 leave a last group of 2, and one that is not full takes 4 "
        "or more, as many as the pipeline has ranks; give groups of 5 or 6 or 10, or 8 or 12 "
        "microbatches");
  CHECK(refusal({Schedule::kInterleaved, 2, 2, 5}, 4) ==
        "groups of 5 microbatches are larger than the 4 of a step; give groups of 2 or 4, or 5 "
        "microbatches");
  CHECK(refusal({Schedule::kZb1p, 3, 2}, 5) ==
        "5 microbatches in groups of 3 leave a last group of 2, and one that is not full takes 3 "
        "or more, as many as the pipeline has ranks; give groups of 5, or 3 or 6 microbatches");
  CHECK(refusal({Schedule::kDualPipeV, 3, 2}, 5) ==
        "the schedule dualpipev on 3 ranks takes 6 microbatches or more, not 5; give 6 or more "
        "microbatches, or take zbv");
  // Legal with fewer microbatches than ranks.
  for (const Pipeline& pipeline :
       {Pipeline{Schedule::kGPipe, 4, 1}, Pipeline{Schedule::k1F1B, 4, 1},
        Pipeline{Schedule::kZb1p, 4, 1}, Pipeline{Schedule::kZb1p, 4, 3},
        Pipeline{Schedule::kZb1p, 4, 3, 5}, Pipeline{Schedule::kZbV, 4, 2},
        Pipeline{Schedule::kBreadthFirst, 4, 2}}) {
    CHECK(takes_microbatches(pipeline, 3));
    CHECK(next_microbatches(pipeline, 3) == 3);
  }
  // Up to which number a batch is filled.
  CHECK(next_microbatches({Schedule::kInterleaved, 4, 2}, 0) == 4);
  CHECK(next_microbatches({Schedule::kInterleaved, 4, 2}, 4) == 4);
  CHECK(next_microbatches({Schedule::kInterleaved, 4, 2}, 5) == 8);
  CHECK(next_microbatches({Schedule::kInterleaved, 2, 2, 5}, 6) == 7);
  CHECK(next_microbatches({Schedule::kDualPipeV, 3, 2}, 2) == 6);
  CHECK(next_microbatches({Schedule::kInterleaved, 2, 2, 1'000'000'000'000}, 6) ==
        1'000'000'000'000);
  for (int64_t group = 3; group <= 7; ++group) {
    const Pipeline pipeline{Schedule::kInterleaved, 3, 2, group};
    for (int64_t microbatches = 1; microbatches <= 20; ++microbatches) {
      int64_t next = microbatches;
      while (!takes_microbatches(pipeline, next)) ++next;
      CHECK(next_microbatches(pipeline, microbatches) == next);
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
