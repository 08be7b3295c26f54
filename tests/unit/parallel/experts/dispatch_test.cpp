// Both dispatches against the masked loop over all experts, for every ep and etp of up to 8 ranks
// and for counts that no router would spread evenly.
#include "parallel/experts/dispatch.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "base/enum_names.h"
#include "base/training_choices.h"
#include "golden/dense_experts.h"
#include "observe/probe.h"
#include "tensor/shard.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kHidden = 3, kChosen = 2;

// What one rank of a group has: its tokens, and the first of the two neighbors that each chooses;
// -1 for padding.
using Choices = std::vector<int64_t>;
struct Pattern {
  std::string name;
  std::function<Choices(int64_t rank, int64_t ranks, int64_t experts)> of;
};

std::vector<Pattern> patterns() {
  return {
      {"spread",
       [](int64_t rank, int64_t, int64_t experts) {
         Choices choices;
         for (int64_t t = 0; t < 3 + rank % 3; ++t) {
           choices.push_back((5 * t + 3 * rank) % (experts - 1));
         }
         return choices;
       }},
      {"all to the first two", [](int64_t, int64_t, int64_t) { return Choices(4, 0); }},
      {"all to the last two",
       [](int64_t rank, int64_t, int64_t experts) { return Choices(rank + 1, experts - 2); }},
      {"one rank has tokens",
       [](int64_t rank, int64_t ranks, int64_t) { return Choices(rank == ranks - 1 ? 3 : 0, 0); }},
      {"no rank has tokens", [](int64_t, int64_t, int64_t) { return Choices(); }},
      {"padding alone", [](int64_t, int64_t, int64_t) { return Choices(3, -1); }},
      {"padding on every other rank",
       [](int64_t rank, int64_t, int64_t experts) {
         return rank % 2 == 0 ? Choices{0, -1, experts - 2} : Choices(2, -1);
       }},
  };
}

at::Tensor ids_of(const Choices& choices) {
  const at::Tensor first = at::tensor(choices, at::kLong).unsqueeze(1);
  const at::Tensor both = at::cat({first, first + 1}, 1);
  return at::where(first.lt(0), at::full_like(both, -1), both);
}

// The leaves of a group of ranks.
struct Group {
  std::vector<at::Tensor> ids = {}, x = {}, weights = {}, grad = {};  // of each rank
  at::Tensor gate_up, down;
};

Group group_of(const Pattern& pattern, int64_t ranks, int64_t experts, int64_t width) {
  Group group{.gate_up = random_tensor({experts, 2 * width, kHidden}, 1),
              .down = random_tensor({experts, kHidden, width}, 2)};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    group.ids.push_back(ids_of(pattern.of(rank, ranks, experts)));
    const int64_t tokens = group.ids.back().size(0);
    group.x.push_back(random_tensor({tokens, kHidden}, 10 + rank));
    group.weights.push_back(random_tensor({tokens, kChosen}, 30 + rank));
    group.grad.push_back(random_tensor({tokens, kHidden}, 50 + rank));
  }
  return group;
}

at::Tensor leaf(const at::Tensor& tensor) { return tensor.clone().requires_grad_(); }

at::Tensor grad_of(const at::Tensor& of) {
  return of.grad().defined() ? of.grad() : at::zeros_like(of);
}

// The masked loop: every expert computes every token.
NamedResults golden_of(const Group& group) {
  const at::Tensor x = leaf(at::cat(group.x)), weights = leaf(at::cat(group.weights)),
                   gate_up = leaf(group.gate_up), down = leaf(group.down), ids = at::cat(group.ids);
  const at::Tensor dense = at::zeros({x.size(0), down.size(0)}, x.options())
                               .scatter_add(1, ids.clamp_min(0), weights.masked_fill(ids.lt(0), 0));
  const at::Tensor y = golden::dense_experts(x, dense, gate_up, down, Activation::kSilu);
  y.backward(at::cat(group.grad));
  return {{"y", y.detach()},
          {"x", grad_of(x)},
          {"weights", grad_of(weights)},
          {"gate_up", grad_of(gate_up)},
          {"down", grad_of(down)}};
}

// "" when a rank of the group has its part of the golden's values, else the first other one.
std::string wrong_of(const Group& group, const NamedResults& golden, const Mesh& mesh,
                     MeshComm& comm, ExpertDispatch dispatch) {
  const int64_t rank = comm.rank(), width = group.down.size(2);
  const int64_t place = rank % static_cast<int64_t>(group.x.size());
  const Layout gate_up({Cut::even(0, "ep"), Cut::in_blocks(1, "etp", {width, width})});
  const Layout down({Cut::even(0, "ep"), Cut::even(2, "etp")});
  const at::Tensor x = leaf(group.x[place]), weights = leaf(group.weights[place]);
  const OwnExperts own{leaf(cut(group.gate_up, gate_up, mesh, rank)),
                       leaf(cut(group.down, down, mesh, rank)), Activation::kSilu};
  const ExpertRanks ranks{comm.along("ep"), comm.along("etp"),
                          comm.along(std::vector<std::string>{"ep", "etp"})};
  NoProbe nobody;
  const auto run =
      dispatch == ExpertDispatch::kAllToAll ? experts_by_all_to_all : experts_by_all_gather;
  const at::Tensor y = run(x, group.ids[place], weights, own, ranks, "experts", {.probe = nobody});
  y.backward(group.grad[place]);

  int64_t first = 0;
  for (int64_t i = 0; i < place; ++i) first += group.x[i].size(0);
  const auto mine = [&](const char* name) { return golden.at(name).narrow(0, first, x.size(0)); };
  const std::vector<std::tuple<const char*, at::Tensor, at::Tensor>> all = {
      {"y", mine("y"), y.detach()},
      {"grad x", mine("x"), grad_of(x)},
      {"grad weights", mine("weights"), grad_of(weights)},
      {"grad gate_up", cut(golden.at("gate_up"), gate_up, mesh, rank), own.gate_up.grad()},
      {"grad down", cut(golden.at("down"), down, mesh, rank), own.down.grad()}};
  for (const auto& [name, right, actual] : all) {
    if (!actual.defined()) return std::string(name) + " does not exist";
    const std::string here = difference(right, actual, 1e-13, /*scale=*/1);
    if (!here.empty()) return std::string(name) + ": " + here;
  }
  return "";
}

void check_all(int64_t ep, int64_t etp, int64_t edp, ExpertDispatch dispatch) {
  const int64_t ranks = ep * etp;
  const Mesh mesh({{"dp", ranks * edp}}, {{"edp", ranks, edp}, {"ep", etp, ep}, {"etp", 1, etp}});
  INFO(mesh.describe() << ", " << name_of(dispatch));
  std::vector<Group> groups;
  std::vector<NamedResults> goldens;
  for (const Pattern& pattern : patterns()) {
    groups.push_back(group_of(pattern, ranks, /*experts=*/2 * ep, /*width=*/2 * etp));
    goldens.push_back(golden_of(groups.back()));
  }
  std::vector<std::string> wrong(static_cast<size_t>(mesh.world_size()));
  const auto calls = calls_of_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    for (size_t i = 0; i < groups.size(); ++i) {
      const std::string here = wrong_of(groups[i], goldens[i], mesh, comm, dispatch);
      if (!here.empty()) wrong[static_cast<size_t>(rank)] += patterns()[i].name + ": " + here;
    }
  });
  for (const std::string& of_rank : wrong) CHECK(of_rank == "");
  for (const auto& of_rank : calls) CHECK(of_rank == calls[0]);
}

}  // namespace

TEST_CASE("Experts on other ranks give the values and gradients of the masked loop over all",
          "[experts][EP-2][EP-3][EP-4][EP-5][EP-6]") {
  const auto dispatch = GENERATE(ExpertDispatch::kAllToAll, ExpertDispatch::kAllGather);
  for (int64_t ep = 1; ep <= 8; ++ep) {
    for (int64_t etp = 1; ep * etp <= 8; ++etp) check_all(ep, etp, /*edp=*/1, dispatch);
  }
  check_all(2, 2, /*edp=*/2, dispatch);
}

}  // namespace shardproof::tests
