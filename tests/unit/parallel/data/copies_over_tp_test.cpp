// The average over dp of gradients that every tp rank holds in copy, together with others that tp
// cuts unevenly.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "parallel/data/replicate.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::copies_over_tp_test {
namespace {

const Mesh kMesh({{"dp", 3}, {"tp", 2}});

ParameterPtr parameter(const std::string& name, std::vector<int64_t> shape, Layout layout) {
  return std::make_shared<Parameter>(
      Parameter{.name = name, .tensor = {}, .global_shape = std::move(shape), .layout = layout});
}

// Parameters that are cut, whole, cut unevenly, and whole.
std::vector<ParameterPtr> parameters() {
  const Layout by_tp({Cut::chunk(0, "tp")});
  return {parameter("even", {6, 5}, by_tp), parameter("first norm", {331}, {}),
          parameter("uneven", {7, 53}, by_tp), parameter("last norm", {97}, {})};
}

// A gradient that differs between dp ranks; tp ranks have equal copies of a whole one.
at::Tensor gradient(const Parameter& parameter, int64_t rank) {
  const int64_t dp = kMesh.coordinate("dp", rank), tp = kMesh.coordinate("tp", rank);
  at::manual_seed(dp * 100 + (parameter.layout.cuts().empty() ? 0 : 1 + tp) +
                  10 * static_cast<int64_t>(parameter.name.size()));
  return at::randn(parameter.layout.local_shape(parameter.global_shape, kMesh, rank), at::kDouble);
}

TEST_CASE("copies over tp get the same bits over Gloo although other shards differ in size",
          "[parallel][gloo]") {
  std::vector<std::vector<at::Tensor>> given(6), averaged(6);
  for (int64_t rank = 0; rank < 6; ++rank) {
    for (const ParameterPtr& each : parameters()) {
      given[static_cast<size_t>(rank)].push_back(gradient(*each, rank));
    }
  }
  tests::run_gloo_ranks(kMesh, [&](MeshComm& comm, int64_t rank) {
    std::vector<at::Tensor> grads = given[static_cast<size_t>(rank)];
    average_parameter_gradients(parameters(), grads, comm, {"dp"});
    averaged[static_cast<size_t>(rank)] = std::move(grads);
  });
  for (size_t i = 0; i < 4; ++i) {
    INFO(parameters()[i]->name);
    for (size_t rank = 0; rank < 6; ++rank) {
      const size_t tp = rank % 2;
      const at::Tensor mean = (given[tp][i] + given[2 + tp][i] + given[4 + tp][i]) / 3;
      REQUIRE(averaged[rank][i].sizes() == mean.sizes());
      CHECK((averaged[rank][i] - mean).abs().max().item<double>() < 1e-15);
      if (parameters()[i]->layout.cuts().empty()) CHECK(averaged[rank][i].equal(averaged[0][i]));
    }
  }
}

}  // namespace
}  // namespace shardproof::copies_over_tp_test
