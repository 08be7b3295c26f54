// How the link between two stages treats tensors: what it received, and what it sends.
#include "parallel/pp/stages.h"

#include <ATen/ATen.h>

#include <array>
#include <catch2/catch.hpp>

#include "parallel/pp/tables.h"
#include "tests/support/run_ranks.h"

namespace shardproof::tests {
namespace {

using Kind = Action::Kind;

const Pipeline kPipeline{.schedule = PipelineSchedule::kGPipe, .ranks = 2};

// A pass of two microbatches on this rank of pp, in which `act` makes each action.
template <class Act>
void pass(PipelineStages& stages, MeshComm& comm, const Act& act) {
  const auto actions = pipeline_actions(kPipeline, 2, comm.along("pp").rank());
  stages.begin(actions, /*backward=*/true, {{1, 2, 3}, {1, 2, 3}});
  for (const Action& action : actions) {
    stages.before(action);
    act(action);
  }
}

PipelineStages link_of(MeshComm& comm) {
  return {kPipeline,
          /*first_trained=*/0,
          BoundaryShapes::kKnown,
          {Boundary{}},
          comm,
          at::ScalarType::Double,
          at::kCPU};
}

at::Tensor numbered(double first) {
  return at::arange(first, first + 6, at::kDouble).view({1, 2, 3});
}

TEST_CASE("a received activation is a new leaf of its microbatch", "[parallel][pp][PP-14]") {
  std::vector<at::Tensor> leaves;
  std::vector<bool> had_gradients;
  run_emulated_ranks(Mesh::training({.pp = 2}), [&](MeshComm& comm, int64_t rank) {
    PipelineStages stages = link_of(comm);
    for (const double step : {100.0, 200.0}) {
      pass(stages, comm, [&](const Action& action) {
        const double first = step + 10 * static_cast<double>(action.microbatch);
        const bool forward = action.kind == Kind::kForward;
        if (rank == 0) {
          if (forward) stages.output(action, numbered(first));
          if (!forward) stages.output_grad(action);
          return;
        }
        if (forward) {
          leaves.push_back(stages.input(action));
          had_gradients.push_back(leaves.back().grad().defined());
          return;
        }
        const size_t number = (step == 100 ? 0 : 2) + static_cast<size_t>(action.microbatch);
        leaves[number].sum().backward();
        stages.input_grad(action, leaves[number].grad());
      });
      stages.finish();
    }
  });
  REQUIRE(leaves.size() == 4);
  CHECK(had_gradients == std::vector<bool>(4, false));
  constexpr std::array kFirst = {100.0, 110.0, 200.0, 210.0};
  for (size_t i = 0; i < leaves.size(); ++i) {
    CHECK(leaves[i].is_leaf());
    CHECK(leaves[i].requires_grad());
    CHECK(at::equal(leaves[i].detach(), numbered(kFirst[i])));  // later ones have not replaced it
    CHECK(at::equal(leaves[i].grad(), at::ones({1, 2, 3}, at::kDouble)));  // of one backward
  }
}

TEST_CASE("a sent tensor stays, unchanged, until the pass has waited for its send",
          "[parallel][pp][PP-14]") {
  std::vector<bool> before_finish, after_finish, received;
  run_emulated_ranks(Mesh::training({.pp = 2}), [&](MeshComm& comm, int64_t rank) {
    PipelineStages stages = link_of(comm);
    std::array<std::array<double, 6>, 2> memory = {};
    std::array<bool, 2> freed = {};
    pass(stages, comm, [&](const Action& action) {
      const bool forward = action.kind == Kind::kForward;
      const double first = 10 * static_cast<double>(action.microbatch);
      if (rank == 0 && forward) {
        const auto place = static_cast<size_t>(action.microbatch);
        const at::Tensor stream = at::from_blob(
            memory[place].data(), {1, 2, 3}, [&freed, place](void*) { freed[place] = true; },
            at::kDouble);
        stream.copy_(numbered(first));
        stages.output(action, stream);
      } else if (rank == 0) {
        stages.output_grad(action);
      } else if (forward) {
        received.push_back(at::equal(stages.input(action).detach(), numbered(first)));
      } else {
        stages.input_grad(action, numbered(first));
      }
    });
    if (rank == 0) {
      for (const bool is_freed : freed) before_finish.push_back(!is_freed);
    }
    stages.finish();
    if (rank == 0) {
      for (const bool is_freed : freed) after_finish.push_back(!is_freed);
    }
  });
  CHECK(received == std::vector<bool>{true, true});
  CHECK(before_finish == std::vector<bool>{true, true});
  CHECK(after_finish == std::vector<bool>{false, false});
}

}  // namespace
}  // namespace shardproof::tests
