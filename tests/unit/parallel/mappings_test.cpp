// Every differentiable collective against plain arithmetic on all ranks' tensors.
#include "collective/mappings.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "tests/unit/parallel/rank_results.h"

namespace shardproof::tests {
namespace {

// The tensors of one tp group, by tp rank.
using Pieces = std::vector<at::Tensor>;

struct Setting {
  int64_t dim;
  std::vector<int64_t> sizes;  // this dim's parts, one per rank
  bool even;                   // the mapping is called without sizes
};

struct MappingCase {
  const char* name;
  bool takes_part;  // the input is a part along dim
  bool gives_part;  // the output is
  std::function<at::Tensor(const at::Tensor&, Communicator&, const Setting&)> call;
  std::function<at::Tensor(const Pieces&, size_t rank, const Setting&)> golden_forward;
  std::function<at::Tensor(const Pieces&, size_t rank, const Setting&)> golden_backward;
};

at::Tensor sum_of(const Pieces& pieces) {
  at::Tensor sum = pieces[0].clone();
  for (size_t i = 1; i < pieces.size(); ++i) sum += pieces[i];
  return sum;
}

at::Tensor part_of(const at::Tensor& full, size_t rank, const Setting& setting) {
  const int64_t start = std::accumulate(
      setting.sizes.begin(), setting.sizes.begin() + static_cast<int64_t>(rank), int64_t{0});
  return full.narrow(setting.dim, start, setting.sizes[rank]);
}

std::vector<int64_t> sizes_given(const Setting& setting) {
  return setting.even ? std::vector<int64_t>{} : setting.sizes;
}

std::vector<MappingCase> mapping_cases() {
  const auto own = [](const Pieces& pieces, size_t rank, const Setting&) { return pieces[rank]; };
  const auto sum = [](const Pieces& pieces, size_t, const Setting&) { return sum_of(pieces); };
  const auto all = [](const Pieces& pieces, size_t, const Setting& s) {
    return at::cat(pieces, s.dim);
  };
  const auto part_of_sum = [](const Pieces& pieces, size_t rank, const Setting& setting) {
    return part_of(sum_of(pieces), rank, setting);
  };
  const auto part_of_own = [](const Pieces& pieces, size_t rank, const Setting& setting) {
    return part_of(pieces[rank], rank, setting);
  };
  return {
      {"copy_with_all_reduce_backward", false, false,
       [](const at::Tensor& x, Communicator& tp, const Setting&) {
         return copy_with_all_reduce_backward(x, tp, "here");
       },
       own, sum},
      {"all_reduce_with_identity_backward", false, false,
       [](const at::Tensor& x, Communicator& tp, const Setting&) {
         return all_reduce_with_identity_backward(x, tp, "here");
       },
       sum, own},
      {"all_gather_with_reduce_scatter_backward", true, false,
       [](const at::Tensor& x, Communicator& tp, const Setting& s) {
         return all_gather_with_reduce_scatter_backward(x, tp, s.dim, "here", sizes_given(s));
       },
       all, part_of_sum},
      {"all_gather_with_slice_backward", true, false,
       [](const at::Tensor& x, Communicator& tp, const Setting& s) {
         return all_gather_with_slice_backward(x, tp, s.dim, "here", sizes_given(s));
       },
       all, part_of_own},
      {"reduce_scatter_with_all_gather_backward", false, true,
       [](const at::Tensor& x, Communicator& tp, const Setting& s) {
         return reduce_scatter_with_all_gather_backward(x, tp, s.dim, "here", sizes_given(s));
       },
       part_of_sum, all},
      {"slice_with_all_gather_backward", false, true,
       [](const at::Tensor& x, Communicator& tp, const Setting& s) {
         return slice_with_all_gather_backward(x, tp, s.dim, "here", sizes_given(s));
       },
       part_of_own, all},
  };
}

// [.., size along dim, ..] of rank `rank`; every element on every rank different.
at::Tensor piece(const Setting& setting, bool part, int64_t tp_rank, int64_t seed) {
  std::vector<int64_t> shape = {3, 4, 5};
  const int64_t whole = std::accumulate(setting.sizes.begin(), setting.sizes.end(), int64_t{0});
  const size_t dim = static_cast<size_t>(setting.dim < 0 ? setting.dim + 3 : setting.dim);
  shape[dim] = part ? setting.sizes[static_cast<size_t>(tp_rank)] : whole;
  return random_tensor(shape, seed);
}

// The same values with reversed strides.
at::Tensor strided(const at::Tensor& tensor) {
  return tensor.permute({2, 1, 0}).contiguous().permute({2, 1, 0});
}

void check_mapping(const MappingCase& mapping, const Mesh& mesh, const Setting& setting) {
  INFO(mapping.name << " tp=" << mesh.size("tp") << " dim=" << setting.dim
                    << (setting.even ? " even" : " uneven"));
  const auto tp_rank = [&](int64_t rank) { return mesh.coordinate("tp", rank); };
  const auto input_of = [&](int64_t rank) {
    return piece(setting, mapping.takes_part, tp_rank(rank), 100 + rank);
  };
  const auto grad_of = [&](int64_t rank) {
    return piece(setting, mapping.gives_part, tp_rank(rank), 200 + rank);
  };
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor leaf = strided(input_of(rank)).requires_grad_();
    const at::Tensor grad = strided(grad_of(rank));
    const at::Tensor y = mapping.call(leaf, comm.along("tp"), setting);
    y.backward(grad);
    return {
        {"y", y.detach()}, {"grad", leaf.grad()}, {"x after", leaf.detach()}, {"g after", grad}};
  });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    Pieces inputs, grads;
    for (const int64_t peer : mesh.peers_along("tp", rank)) {
      inputs.push_back(input_of(peer));
      grads.push_back(grad_of(peer));
    }
    const auto index = static_cast<size_t>(tp_rank(rank));
    const NamedResults& result = results[static_cast<size_t>(rank)];
    CHECK(difference(mapping.golden_forward(inputs, index, setting), result.at("y")) == "");
    CHECK(difference(mapping.golden_backward(grads, index, setting), result.at("grad")) == "");
    CHECK(result.at("x after").equal(input_of(rank)));
    CHECK(result.at("g after").equal(grad_of(rank)));
  }
}

std::vector<int64_t> parts(int64_t tp_size, const std::vector<int64_t>& of_four) {
  return {of_four.begin(), of_four.begin() + tp_size};
}

TEST_CASE("each mapping is its forward and its backward, on groups that do not start at rank 0",
          "[collective][SH-1][SH-2][SH-3]") {
  for (const MappingCase& mapping : mapping_cases()) {
    for (const int64_t tp : {1, 2, 3, 4}) {
      const Mesh mesh = Mesh::training(2, 1, 1, tp);
      for (const int64_t dim : {0, 1, 2, -1}) {
        check_mapping(mapping, mesh, {dim, parts(tp, {2, 2, 2, 2}), true});
        check_mapping(mapping, mesh, {dim, parts(tp, {3, 1, 4, 2}), false});
        check_mapping(mapping, mesh, {dim, parts(tp, {2, 0, 3, 0}), false});
      }
    }
  }
}

TEST_CASE("a mapping over strided groups (an outer axis) reaches the right peers",
          "[collective][SH-1]") {
  const Mesh mesh({{"tp", 3}, {"inner", 2}});  // tp groups {0,2,4} and {1,3,5}
  for (const MappingCase& mapping : mapping_cases()) {
    check_mapping(mapping, mesh, {1, {3, 1, 4}, false});
  }
}

TEST_CASE("an empty tensor passes every mapping", "[collective][SH-1]") {
  for (const MappingCase& mapping : mapping_cases()) {
    check_mapping(mapping, Mesh::training(1, 1, 1, 3), {1, {0, 0, 0}, true});
  }
}

TEST_CASE("an expanded gradient, all strides 0, is summed like any other", "[collective][SH-1]") {
  const Mesh mesh = Mesh::training(1, 1, 1, 3);
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
  const Mesh mesh = Mesh::training(1, 1, 1, 2);
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
        Mesh::training(1, 1, 1, tp),
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
  on_every_rank(Mesh::training(1, 1, 1, 2), [](MeshComm& comm, int64_t) -> NamedResults {
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::ones({2}, at::TensorOptions().dtype(at::kDouble)).requires_grad_();
    const at::Tensor y = all_reduce_with_identity_backward(x, comm.along("tp"), "here");
    if (y.requires_grad()) throw std::logic_error("a graph was kept");
    return {};
  });
}

}  // namespace
}  // namespace shardproof::tests
