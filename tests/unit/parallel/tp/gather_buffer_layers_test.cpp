// Sequence-parallel layers that gather into one buffer: those in sequence share one memory. Their
// values, also where autograd keeps a gathered input, are those of scenarios/tp/options.yaml.
#include <catch2/catch.hpp>

#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::gather_buffer_layers_test {
namespace {

// Memories of the buffer after two training steps of two blocks, and those that are in use.
std::pair<int64_t, int64_t> memories_of_two_blocks(Communicator& tp, bool frozen) {
  const auto buffer = std::make_shared<GatherBuffer>();
  std::vector<ColumnParallelLinear> ups;
  std::vector<RowParallelLinear> downs;
  for (int64_t i = 0; i < 2; ++i) {
    const ParameterPtr up = cut_parameter(random_tensor({12, 5}, 3 + i), 0, tp);
    up->tensor.requires_grad_(!frozen);
    const ParameterPtr down = cut_parameter(random_tensor({5, 12}, 5 + i), 1, tp);
    ups.push_back(ColumnParallelLinear(
        up, nullptr, tp,
        {.label = "up", .sequence_parallel = true, .async_grad = true, .gather_buffer = buffer}));
    downs.push_back(RowParallelLinear(
        down, nullptr, tp, {.label = "down", .sequence_parallel = true, .gather_buffer = buffer}));
  }
  for (int step = 0; step < 2; ++step) {
    at::Tensor y = random_tensor({2, 4, 5}, 1).requires_grad_();
    for (size_t i = 0; i < 2; ++i) y = y + run_layer(downs[i], run_layer(ups[i], y).tanh());
    y.sum().backward();
  }
  return {buffer->count(), buffer->in_use()};
}

TEST_CASE("each layer releases its gathered input before the next one gathers",
          "[tp][SH-2][TP-4]") {
  for (const bool frozen : {false, true}) {
    for (const int64_t tp : {1, 3}) {
      std::vector<std::pair<int64_t, int64_t>> memories(static_cast<size_t>(tp));
      run_emulated_ranks(Mesh({{"tp", tp}}), [&](MeshComm& comm, int64_t rank) {
        memories[static_cast<size_t>(rank)] = memories_of_two_blocks(comm.along("tp"), frozen);
      });
      for (const auto& [count, in_use] : memories) {
        CHECK(count == (tp == 1 ? 0 : 1));
        CHECK(in_use == 0);
      }
    }
  }
}

}  // namespace
}  // namespace shardproof::tests::gather_buffer_layers_test
