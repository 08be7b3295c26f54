// Mappings with odd gradients and odd parts, the labels of their calls, and no graph where none is
// needed. Their values and gradients are those of scenarios/layers/mappings*.yaml.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "collective/all_to_all.h"
#include "collective/mappings.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

// A scenario cannot hold copies that differ: there the ranks' copies are one tensor.
TEST_CASE("where the ranks' copies differ, each rank's own counts", "[collective][SH-1]") {
  const auto copy_of = [](int64_t rank) { return random_tensor({6, 4}, 1 + rank); };
  const auto part_of = [](int64_t rank) { return random_tensor({3, 4}, 11 + rank); };
  const auto results = on_every_rank(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    const at::Tensor part = part_of(rank).requires_grad_();
    all_gather_with_slice_backward(part, tp, 0, "x").backward(copy_of(rank));
    const at::Tensor addend = copy_of(rank).requires_grad_();
    all_reduce_with_identity_backward(addend, tp, "x").backward(copy_of(rank));
    const at::Tensor copy = copy_of(rank).requires_grad_();
    return NamedResults{{"copied", copy_with_all_reduce_backward(copy, tp, "x").detach()},
                        {"sliced", slice_with_all_gather_backward(copy, tp, 0, "x").detach()},
                        {"sliced grad", part.grad()},
                        {"grad as it is", addend.grad()}};
  });
  for (int64_t rank = 0; rank < 2; ++rank) {
    const NamedResults& own = results[static_cast<size_t>(rank)];
    const at::Tensor slice = copy_of(rank).narrow(0, 3 * rank, 3);
    CHECK(own.at("copied").equal(copy_of(rank)));
    CHECK(own.at("sliced").equal(slice));
    CHECK(own.at("sliced grad").equal(slice));
    CHECK(own.at("grad as it is").equal(copy_of(rank)));
  }
}

// Cuts, joins and sums a dim of 7 by `sizes`, and gives rows to features and back; throws where one
// of them is wrong.
void check_parts(Communicator& axis, const std::vector<int64_t>& sizes) {
  const auto check = [&](bool holds, const std::string& what) {
    if (!holds) throw std::logic_error(what + " over " + axis.axis());
  };
  const auto rank = static_cast<size_t>(axis.rank());
  const auto count = static_cast<double>(axis.size());
  const at::Tensor x = random_tensor({12, 7}, 1).requires_grad_(), grad = random_tensor({12, 7}, 2);
  const at::Tensor own = slice_with_all_gather_backward(x, axis, -1, "own", sizes);
  const at::Tensor joined = all_gather_with_slice_backward(own, axis, -1, "joined", sizes);
  const at::Tensor sum = reduce_scatter_with_all_gather_backward(joined, axis, 1, "sum", sizes);
  const at::Tensor y = all_gather_with_reduce_scatter_backward(sum, axis, 1, "y", sizes);
  y.backward(grad);
  check(own.equal(x.split_with_sizes(sizes, 1)[rank]), "a slice");
  check(joined.equal(x), "a gather");
  check(sum.equal(count * own), "a sum");
  check(y.equal(count * x), "a gather of sums");
  check(x.grad().equal(count * grad), "a gradient");

  const at::Tensor all = x.detach().t();
  const at::Tensor rows = all.split_with_sizes(sizes, 0)[rank].clone().requires_grad_();
  const at::Tensor features = sequence_to_hidden(rows, axis, "features", sizes);
  const at::Tensor again = hidden_to_sequence(features, axis, "rows", sizes);
  again.backward(2 * rows.detach());
  check(features.equal(all.chunk(axis.size(), 1)[rank]), "features of all rows");
  check(again.equal(rows), "all features of own rows");
  check(rows.grad().equal(2 * rows), "a gradient of rows");
}

// Scenarios cut by torch.chunk's rule, and over one axis.
TEST_CASE("parts of any size, also none in the middle, on two groups of one process",
          "[collective][SH-1][SH-2][SH-3][SH-4]") {
  const Mesh mesh({{"outer", 3}, {"inner", 2}});  // outer groups {0,2,4}, {1,3,5}; inner {0,1}, ..
  for (const auto world : {run_emulated_ranks, run_gloo_ranks}) {
    CHECK_NOTHROW(world(mesh, [](MeshComm& comm, int64_t) {
      check_parts(comm.along("outer"), {3, 0, 4});
      check_parts(comm.along("inner"), {2, 5});
    }));
  }
}

TEST_CASE("an expanded gradient, all strides 0, is summed like any other", "[collective][SH-1]") {
  const Mesh mesh = Mesh::training({.tp = 3});
  const auto results = on_every_rank(mesh, [](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor x = random_tensor({2, 3}, rank).requires_grad_();
    const at::Tensor y = copy_with_all_reduce_backward(x, comm.along("tp"), "here");
    y.backward(at::full({}, static_cast<double>(rank + 1), at::kDouble).expand({2, 3}));
    return {{"grad", x.grad()}};
  });
  for (const auto& result : results) {
    CHECK(result.at("grad").equal(at::full({2, 3}, 6.0, at::kDouble)));
  }
}

TEST_CASE("calls carry the label and the direction; a group of one makes none", "[collective]") {
  const auto calls_with = [](int64_t tp) {
    return calls_of_ranks(Mesh::training({.tp = tp}), [](MeshComm& comm, int64_t) {
      const at::Tensor x = at::ones({2, 2}, at::kDouble).requires_grad_();
      const at::Tensor y = all_gather_with_reduce_scatter_backward(x, comm.along("tp"), 1, "a");
      copy_with_all_reduce_backward(y, comm.along("tp"), "b").sum().backward();
    })[0];
  };
  CHECK(calls_with(1).empty());
  CHECK(calls_with(2) == std::vector<std::string>{"all_gather a forward", "all_reduce b backward",
                                                  "reduce_scatter a backward"});
}

TEST_CASE("without gradients a mapping leaves nothing behind", "[collective]") {
  run_emulated_ranks(Mesh::training({.tp = 2}), [](MeshComm& comm, int64_t) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::ones({2}, at::TensorOptions().dtype(at::kDouble)).requires_grad_();
    const at::Tensor y = all_reduce_with_identity_backward(x, comm.along("tp"), "here");
    if (y.requires_grad()) throw std::logic_error("a graph was kept");
  });
}

TEST_CASE("a backward after its communicator has ended is an error", "[collective]") {
  using Forward = std::function<at::Tensor(const at::Tensor&, Communicator&)>;
  const std::vector<Forward> forwards = {
      [](const auto& x, auto& tp) { return copy_with_all_reduce_backward(x, tp, "x"); },
      [](const auto& x, auto& tp) { return all_gather_with_slice_backward(x, tp, 0, "x"); },
      [](const auto& x, auto& tp) { return all_to_all_with_all_to_all_backward(x, tp, "x"); }};
  for (const Forward& forward : forwards) {
    const auto said = backward_after_the_end(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t) {
      return forward(at::ones({2, 2}).requires_grad_(), comm.along("tp"));
    });
    for (const std::string& text : said) {
      CHECK_THAT(text, Catch::Contains("the communicator brief.tp[0,1] has ended"));
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
