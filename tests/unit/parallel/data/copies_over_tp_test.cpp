// The average over dp of gradients that every tp rank holds in copy, together with others that tp
// cuts unevenly.
#include <catch2/catch.hpp>

#include "parallel/data/replicate.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests {
namespace {

// Parameters that are cut, whole, cut unevenly, and whole.
std::vector<ParameterPtr> cut_and_whole() {
  const auto parameter = [](const char* name, std::vector<int64_t> shape, Layout layout = {}) {
    return std::make_shared<Parameter>(
        Parameter{.name = name, .tensor = {}, .global_shape = std::move(shape), .layout = layout});
  };
  const Layout by_tp({Cut::chunk(0, "tp")});
  return {parameter("even", {6, 5}, by_tp), parameter("first norm", {331}),
          parameter("uneven", {7, 53}, by_tp), parameter("last norm", {97})};
}

TEST_CASE("copies over tp get the same bits over Gloo although other shards differ in size",
          "[parallel][gloo]") {
  const Mesh mesh({{"dp", 3}, {"tp", 2}});
  const std::vector<ParameterPtr> parameters = cut_and_whole();
  // A gradient that differs between dp ranks; tp ranks have equal copies of a whole one.
  const auto gradient = [&](const Parameter& of, int64_t rank) {
    const int64_t dp = mesh.coordinate("dp", rank), tp = mesh.coordinate("tp", rank);
    return random_tensor(of.layout.local_shape(of.global_shape, mesh, rank),
                         10 * dp + (of.layout.cuts().empty() ? 0 : 1 + tp));
  };
  const auto averaged =
      on_every_rank_of(World::kGloo, mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
        std::vector<at::Tensor> grads;
        for (const ParameterPtr& each : parameters) grads.push_back(gradient(*each, rank));
        average_parameter_gradients(parameters, grads, comm, {"dp"});
        NamedResults results;
        for (size_t i = 0; i < grads.size(); ++i) results[parameters[i]->name] = grads[i];
        return results;
      });
  for (const ParameterPtr& each : parameters) {
    INFO(each->name);
    for (int64_t rank = 0; rank < 6; ++rank) {
      const at::Tensor& actual = averaged[static_cast<size_t>(rank)].at(each->name);
      const int64_t tp = rank % 2;
      const at::Tensor mean =
          (gradient(*each, tp) + gradient(*each, 2 + tp) + gradient(*each, 4 + tp)) / 3;
      CHECK(difference(mean, actual, 1e-15) == "");
      if (each->layout.cuts().empty()) CHECK(actual.equal(averaged[0].at(each->name)));
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
