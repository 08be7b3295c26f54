// Mappings with odd gradients, the labels of their calls, and no graph where none is needed.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "collective/all_to_all.h"
#include "collective/mappings.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

TEST_CASE("a gradient that also flows elsewhere is not summed in place", "[collective][SH-1]") {
  const Mesh mesh({{"tp", 2}});
  const auto results = on_every_rank(mesh, [](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor x = random_tensor({3, 4}, 1).requires_grad_();
    const at::Tensor other = random_tensor({3, 4}, 2).requires_grad_();
    // `beside` shares the gradient of y, and reads it last because it was made first.
    const at::Tensor beside = other * 1;
    const at::Tensor y = copy_with_all_reduce_backward(x, comm.along("tp"), "x") + beside;
    y.backward(random_tensor({3, 4}, 10 + rank));
    return {{"x", x.grad()}, {"other", other.grad()}};
  });
  const std::vector<at::Tensor> grads = {random_tensor({3, 4}, 10), random_tensor({3, 4}, 11)};
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(difference(grads[0] + grads[1], results[rank].at("x")) == "");
    CHECK(results[rank].at("other").equal(grads[rank]));
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

TEST_CASE("a value used twice gets both gradients through its mapping", "[collective][SH-1]") {
  const Mesh mesh = Mesh::training({.tp = 2});
  const auto results = on_every_rank(mesh, [](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor x = random_tensor({4}, 7).requires_grad_();
    const at::Tensor y = copy_with_all_reduce_backward(x, comm.along("tp"), "here");
    const double weight = rank == 0 ? 1 : 10;
    (y * y * weight + y).sum().backward();
    return {{"grad", x.grad()}};
  });
  const at::Tensor x = random_tensor({4}, 7);
  for (const auto& result : results) CHECK(difference(22 * x + 2, result.at("grad")) == "");
}

TEST_CASE("calls carry the label and the direction; a group of one makes none", "[collective]") {
  const auto calls_with = [](int64_t tp) {
    std::vector<CallLog> logs(static_cast<size_t>(tp));
    std::vector<CallListener*> listeners;
    for (CallLog& log : logs) listeners.push_back(&log);
    const RankRuns runs = try_emulated_ranks(
        Mesh::training({.tp = tp}),
        [](MeshComm& comm, int64_t) {
          const at::Tensor x = at::ones({2, 2}, at::kDouble).requires_grad_();
          const at::Tensor y = all_gather_with_reduce_scatter_backward(x, comm.along("tp"), 1, "a");
          copy_with_all_reduce_backward(y, comm.along("tp"), "b").sum().backward();
        },
        listeners);
    REQUIRE(runs.error_text(0) == "");
    return logs[0].calls;
  };
  CHECK(calls_with(1).empty());
  CHECK(calls_with(2) == std::vector<std::string>{"all_gather a forward", "all_reduce b backward",
                                                  "reduce_scatter a backward"});
}

TEST_CASE("without gradients a mapping leaves nothing behind", "[collective]") {
  on_every_rank(Mesh::training({.tp = 2}), [](MeshComm& comm, int64_t) -> NamedResults {
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::ones({2}, at::TensorOptions().dtype(at::kDouble)).requires_grad_();
    const at::Tensor y = all_reduce_with_identity_backward(x, comm.along("tp"), "here");
    if (y.requires_grad()) throw std::logic_error("a graph was kept");
    return {};
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
