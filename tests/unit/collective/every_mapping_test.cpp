// Every mapping in one table: value and gradient equal their definitions on the tensors of all
// ranks, and the two are adjoint: <F x, g> = <x, F* g>.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <numeric>

#include "collective/all_to_all.h"
#include "collective/mappings.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

using Pieces = std::vector<at::Tensor>;  // by rank of the axis

// One call: the sizes of the parts of `dim` on each rank; if even, the mapping gets no sizes.
struct Setting {
  int64_t dim = 0;  // negative: counted from the last
  std::vector<int64_t> parts;
  bool even = true;
  int64_t size() const { return static_cast<int64_t>(parts.size()); }
  int64_t whole() const { return std::accumulate(parts.begin(), parts.end(), int64_t{0}); }
  std::vector<int64_t> given() const { return even ? std::vector<int64_t>{} : parts; }
};

// How ranks hold the input or the output of a mapping.
enum class Held {
  kSame,    // one tensor, equal on all ranks
  kAddend,  // a tensor of the whole shape on each rank, all different
  kPart,    // this rank's part of dim
};

struct MappingRow {
  const char* name;
  Held takes, gives;
  std::function<at::Tensor(const at::Tensor&, Communicator&, const Setting&)> call;
  std::function<Pieces(const Pieces&, const Setting&)> forward, backward;  // by definition
};

Pieces everywhere(const at::Tensor& tensor, const Setting& s) {
  return Pieces(s.parts.size(), tensor);
}
at::Tensor sum(const Pieces& pieces) { return at::stack(pieces).sum(0); }
Pieces parts(const at::Tensor& whole, const Setting& s) {
  return whole.split_with_sizes(s.parts, s.dim);
}
Pieces as_they_are(const Pieces& pieces, const Setting&) { return pieces; }
Pieces summed(const Pieces& pieces, const Setting& s) { return everywhere(sum(pieces), s); }
Pieces joined(const Pieces& pieces, const Setting& s) {
  return everywhere(at::cat(pieces, s.dim), s);
}
Pieces cut_sum(const Pieces& pieces, const Setting& s) { return parts(sum(pieces), s); }
Pieces cut_own(const Pieces& pieces, const Setting& s) {
  Pieces results;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    results.push_back(parts(pieces[rank], s)[rank]);
  }
  return results;
}

// The j-th part of rank i's tensor goes to rank j.
Pieces traded(const Pieces& pieces, const Setting& s) {
  Pieces results;
  for (size_t to = 0; to < pieces.size(); ++to) {
    Pieces arriving;
    for (const at::Tensor& from : pieces) arriving.push_back(parts(from, s)[to]);
    results.push_back(at::cat(arriving, 0));
  }
  return results;
}
Pieces traded_back(const Pieces& pieces, const Setting& s) {
  Pieces results;
  for (size_t to = 0; to < pieces.size(); ++to) {
    Pieces arriving;
    for (size_t from = 0; from < pieces.size(); ++from) {
      const int64_t rows = s.parts[from];
      arriving.push_back(pieces[from].narrow(0, static_cast<int64_t>(to) * rows, rows));
    }
    results.push_back(at::cat(arriving, 0));
  }
  return results;
}

std::vector<MappingRow> mapping_table() {
  return {
      {"copy_with_all_reduce_backward", Held::kSame, Held::kAddend,
       [](const at::Tensor& x, Communicator& tp, const Setting&) {
         return copy_with_all_reduce_backward(x, tp, "x");
       },
       as_they_are, summed},
      {"all_reduce_with_identity_backward", Held::kAddend, Held::kSame,
       [](const at::Tensor& x, Communicator& tp, const Setting&) {
         return all_reduce_with_identity_backward(x, tp, "x");
       },
       summed, as_they_are},
      {"all_gather_with_reduce_scatter_backward", Held::kPart, Held::kAddend,
       [](const at::Tensor& x, Communicator& tp, const Setting& s) {
         return all_gather_with_reduce_scatter_backward(x, tp, s.dim, "x", s.given());
       },
       joined, cut_sum},
      {"all_gather_with_slice_backward", Held::kPart, Held::kSame,
       [](const at::Tensor& x, Communicator& tp, const Setting& s) {
         return all_gather_with_slice_backward(x, tp, s.dim, "x", s.given());
       },
       joined, cut_own},
      {"reduce_scatter_with_all_gather_backward", Held::kAddend, Held::kPart,
       [](const at::Tensor& x, Communicator& tp, const Setting& s) {
         return reduce_scatter_with_all_gather_backward(x, tp, s.dim, "x", s.given());
       },
       cut_sum, joined},
      {"slice_with_all_gather_backward", Held::kSame, Held::kPart,
       [](const at::Tensor& x, Communicator& tp, const Setting& s) {
         return slice_with_all_gather_backward(x, tp, s.dim, "x", s.given());
       },
       cut_own, joined},
  };
}

// Works on dim 0 only. Rank r receives the length of its part from each rank.
MappingRow all_to_all_row() {
  return {"all_to_all_with_all_to_all_backward",
          Held::kAddend,
          Held::kAddend,
          [](const at::Tensor& x, Communicator& tp, const Setting& s) {
            if (s.even) return all_to_all_with_all_to_all_backward(x, tp, "x");
            const auto own = s.parts[static_cast<size_t>(tp.rank())];
            return all_to_all_with_all_to_all_backward(x, tp, "x", s.parts,
                                                       std::vector<int64_t>(s.parts.size(), own));
          },
          traded,
          traded_back};
}

// [tokens of the rank, H] and [all tokens, H of the rank]; H is 12, which all sizes divide.
MappingRow hidden_row(bool to_hidden) {
  const auto whole_sequence = [](const Pieces& pieces, const Setting&) {
    return at::cat(pieces, 0).chunk(static_cast<int64_t>(pieces.size()), 1);
  };
  const auto whole_hidden = [](const Pieces& pieces, const Setting& s) {
    return at::cat(pieces, 1).split_with_sizes(s.parts, 0);
  };
  if (to_hidden) {
    return {"sequence_to_hidden",
            Held::kPart,
            Held::kPart,
            [](const at::Tensor& x, Communicator& tp, const Setting& s) {
              return sequence_to_hidden(x, tp, "x", s.given());
            },
            whole_sequence,
            whole_hidden};
  }
  return {"hidden_to_sequence",
          Held::kPart,
          Held::kPart,
          [](const at::Tensor& x, Communicator& tp, const Setting& s) {
            return hidden_to_sequence(x, tp, "x", s.given());
          },
          whole_hidden,
          whole_sequence};
}

struct Trial {
  MappingRow mapping;
  Setting setting;
  Pieces inputs, grads;  // by rank of the axis
  bool agree = true;     // whether the ranks' copies are equal; if not, each is mapped separately
};

Pieces draw(Held held, const Setting& setting, std::vector<int64_t> shape, int64_t seed,
            bool agree = true) {
  Pieces pieces;
  const bool same = held == Held::kSame && agree;
  const auto dims = static_cast<int64_t>(shape.size());
  const auto dim = static_cast<size_t>((setting.dim + dims) % dims);
  for (int64_t rank = 0; rank < setting.size(); ++rank) {
    shape[dim] = held == Held::kPart ? setting.parts[static_cast<size_t>(rank)] : setting.whole();
    pieces.push_back(random_tensor(shape, seed + (same ? 0 : rank)));
  }
  return pieces;
}

std::vector<Trial> trials_of(int64_t size) {
  const auto first = [size](const std::vector<int64_t>& of_four) {
    return std::vector<int64_t>(of_four.begin(), of_four.begin() + size);
  };
  std::vector<Trial> trials;
  for (const MappingRow& mapping : mapping_table()) {
    for (const int64_t dim : {0, 1, 2, -1}) {
      for (const Setting& setting :
           {Setting{dim, first({2, 2, 2, 2}), true}, Setting{dim, first({3, 1, 4, 2}), false},
            Setting{dim, first({2, 0, 3, 0}), false}, Setting{dim, first({0, 0, 0, 0}), true}}) {
        for (const bool agree : {true, false}) {
          if (!agree && mapping.takes != Held::kSame && mapping.gives != Held::kSame) continue;
          trials.push_back({mapping, setting, draw(mapping.takes, setting, {3, 4, 5}, 100, agree),
                            draw(mapping.gives, setting, {3, 4, 5}, 200, agree), agree});
        }
      }
    }
  }
  for (const Setting& setting :
       {Setting{0, first({3, 3, 3, 3}), true}, Setting{0, first({3, 1, 4, 2}), false},
        Setting{0, first({0, 2, 0, 3}), false}}) {
    Trial trial{all_to_all_row(), setting, draw(Held::kAddend, setting, {1, 5}, 300), {}, true};
    for (int64_t rank = 0; rank < size; ++rank) {
      const int64_t rows = setting.parts[static_cast<size_t>(rank)] * size;
      trial.grads.push_back(random_tensor({rows, 5}, 400 + rank));
    }
    trials.push_back(trial);
    const Pieces by_token = draw(Held::kPart, setting, {1, 12}, 500);
    const Pieces by_feature =
        draw(Held::kPart, {1, std::vector<int64_t>(static_cast<size_t>(size), 12 / size)},
             {setting.whole(), 1}, 600);
    trials.push_back({hidden_row(true), setting, by_token, by_feature, true});
    trials.push_back({hidden_row(false), setting, by_feature, by_token, true});
  }
  return trials;
}

// The same values with reversed strides.
at::Tensor strided(const at::Tensor& tensor) {
  std::vector<int64_t> reversed(static_cast<size_t>(tensor.dim()));
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  return tensor.permute(reversed).contiguous().permute(reversed);
}

struct Outcome {
  at::Tensor y, grad, input_after, grad_after;
};

Outcome run_trial(const Trial& trial, Communicator& axis) {
  const auto rank = static_cast<size_t>(axis.rank());
  const at::Tensor leaf = strided(trial.inputs[rank]).requires_grad_();
  const at::Tensor grad = strided(trial.grads[rank]);
  const at::Tensor y = trial.mapping.call(leaf, axis, trial.setting);
  y.backward(grad);
  return {y.detach(), leaf.grad(), leaf.detach(), grad};
}

double inner(const Pieces& left, const Pieces& right, Held held) {
  double total = 0;
  for (size_t rank = 0; rank < left.size(); ++rank) {
    total += (left[rank] * right[rank]).sum().item<double>();
    if (held == Held::kSame) break;
  }
  return total;
}

void check_trial(const Trial& trial, const std::vector<Outcome>& outcomes) {
  INFO(trial.mapping.name << " on " << trial.setting.size() << " dim " << trial.setting.dim
                          << (trial.setting.even ? " even" : " uneven"));
  const Pieces y = trial.mapping.forward(trial.inputs, trial.setting);
  const Pieces grad = trial.mapping.backward(trial.grads, trial.setting);
  Pieces ran_y, ran_grad;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const Outcome& outcome = outcomes[rank];
    CHECK(difference(y[rank], outcome.y) == "");
    CHECK(difference(grad[rank], outcome.grad) == "");
    CHECK(outcome.input_after.equal(trial.inputs[rank]));
    CHECK(outcome.grad_after.equal(trial.grads[rank]));
    ran_y.push_back(outcome.y);
    ran_grad.push_back(outcome.grad);
  }
  if (!trial.agree) return;
  const double left = inner(ran_y, trial.grads, trial.mapping.gives);
  const double right = inner(trial.inputs, ran_grad, trial.mapping.takes);
  CHECK(std::abs(left - right) <= 1e-12 * std::max(1.0, std::abs(left)));
}

using World = void (*)(const Mesh& mesh, const RankFunction& body);

// Runs all trials on several axes of one world in turn: each axis has its own group and layout.
void check_world(World world, const Mesh& mesh, const std::vector<std::string>& axes) {
  std::vector<std::vector<Trial>> trials;
  size_t most = 0;
  for (const std::string& axis : axes) {
    trials.push_back(trials_of(mesh.size(axis)));
    most = std::max(most, trials.back().size());
  }
  // outcomes[axis][trial][global rank]
  std::vector<std::vector<std::vector<Outcome>>> outcomes;
  for (const auto& of_axis : trials) {
    outcomes.emplace_back(of_axis.size(),
                          std::vector<Outcome>(static_cast<size_t>(mesh.world_size())));
  }
  world(mesh, [&](MeshComm& comm, int64_t rank) {
    for (size_t i = 0; i < most; ++i) {
      for (size_t axis = 0; axis < axes.size(); ++axis) {
        if (i >= trials[axis].size()) continue;
        outcomes[axis][i][static_cast<size_t>(rank)] =
            run_trial(trials[axis][i], comm.along(axes[axis]));
      }
    }
  });
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      if (mesh.coordinate(axes[axis], rank) != 0) continue;
      for (size_t i = 0; i < trials[axis].size(); ++i) {
        std::vector<Outcome> of_group;
        for (const int64_t peer : mesh.peers_along(axes[axis], rank)) {
          of_group.push_back(outcomes[axis][i][static_cast<size_t>(peer)]);
        }
        check_trial(trials[axis][i], of_group);
      }
    }
  }
}

TEST_CASE("every mapping and its conjugate, also on a group that does not start at rank 0",
          "[collective][SH-1][SH-2][SH-3][SH-4]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    check_world(run_emulated_ranks, Mesh({{"dp", 2}, {"tp", tp}}), {"tp"});
    check_world(run_gloo_ranks, Mesh({{"dp", 2}, {"tp", tp}}), {"tp"});
  }
}

TEST_CASE("two groups of different size and layout in one process do not meet",
          "[collective][SH-1][SH-4]") {
  const Mesh mesh({{"tp", 3}, {"inner", 2}});  // tp groups {0,2,4}, {1,3,5}; inner {0,1}, ..
  check_world(run_emulated_ranks, mesh, {"tp", "inner"});
  check_world(run_gloo_ranks, mesh, {"tp", "inner"});
}

}  // namespace
}  // namespace shardproof::tests
