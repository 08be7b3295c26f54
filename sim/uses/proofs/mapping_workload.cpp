// Workload mapping: one differentiable collective of src/collective, over tp.
//
// A tensor that differs between ranks is a full tensor with the ranks as dim 0. Without the option
// elsewhere the sharded function gets strided tensors.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "collective/all_to_all.h"
#include "collective/mappings.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/passes.h"

namespace shardproof::sim::proofs {
namespace {

// How ranks hold the input or the output of a mapping.
enum class Held {
  kSame,    // one tensor, equal on all ranks
  kEach,    // one tensor of each rank: [ranks, ..], cut along dim 0
  kPart,    // parts of `dim`
  kHidden,  // even parts of the last dim
};

struct MappingKind {
  std::string name;
  Held takes, gives;
};

const std::vector<MappingKind>& mapping_kinds() {
  static const std::vector<MappingKind> kinds = {
      {"copy_with_all_reduce_backward", Held::kSame, Held::kEach},
      {"all_reduce_with_identity_backward", Held::kEach, Held::kSame},
      {"all_gather_with_reduce_scatter_backward", Held::kPart, Held::kEach},
      {"all_gather_with_slice_backward", Held::kPart, Held::kSame},
      {"reduce_scatter_with_all_gather_backward", Held::kEach, Held::kPart},
      {"slice_with_all_gather_backward", Held::kSame, Held::kPart},
      {"all_to_all_with_all_to_all_backward", Held::kEach, Held::kEach},
      {"sequence_to_hidden", Held::kPart, Held::kHidden},
      {"hidden_to_sequence", Held::kHidden, Held::kPart}};
  return kinds;
}

const MappingKind& kind_of(const Options& options) {
  return *std::ranges::find(mapping_kinds(), options["mapping"].get<std::string>(),
                            &MappingKind::name);
}

bool trades(const MappingKind& kind) {
  return kind.takes == Held::kEach && kind.gives == Held::kEach;
}

// Whether the rows of its tensors are tokens.
bool maps_rows(const MappingKind& kind) {
  return kind.takes == Held::kHidden || kind.gives == Held::kHidden;
}

// The dim that is cut, from 0.
int64_t cut_dim(const Options& options) {
  const int64_t dim = options["dim"], dims = std::ssize(options["shape"]);
  if (maps_rows(kind_of(options))) return 0;
  return dim < 0 ? dim + dims : dim;
}

Layout layout_of(Held held, const Options& options) {
  const int64_t dim = cut_dim(options);
  switch (held) {
    case Held::kSame:
      return {};
    case Held::kEach:
      return Layout({Cut::even(0, "tp")});
    case Held::kPart:
      return Layout({options["uneven"] ? Cut::chunk(dim, "tp") : Cut::even(dim, "tp")});
    case Held::kHidden:
      return Layout({Cut::even(-1, "tp")});
  }
  return {};
}

void check_mapping_options(const MappingKind& kind, const Options& options) {
  const int64_t ranks = options["ranks"];
  const std::vector<int64_t> shape = options["shape"];
  const auto dims = std::ssize(shape);
  if (maps_rows(kind) && dims != 2) {
    throw_bad_input(fmt::format("option shape is [{}], but mapping {} takes [tokens, hidden]",
                                fmt::join(shape, ", "), kind.name),
                    "give two sizes");
  }
  const int64_t given = options["dim"];
  if (given != 0 && (given < -dims || given >= dims)) {
    throw_bad_input(fmt::format("option dim is {}, but option shape has {} dims", given, dims),
                    "choose a dim of the shape");
  }
  if (trades(kind) && !options["uneven"] && (shape.empty() || shape[0] % ranks != 0)) {
    throw_bad_input(fmt::format("option shape is [{}], whose first dim {} ranks cannot trade "
                                "in equal parts",
                                fmt::join(shape, ", "), ranks),
                    "make it a multiple of options.ranks, or set options.uneven");
  }
  if (options["uneven"] && !trades(kind) && kind.takes != Held::kPart &&
      kind.gives != Held::kPart) {
    throw_bad_input(fmt::format("option uneven with mapping {}, which has no parts of a dim "
                                "that could differ in size",
                                kind.name),
                    "leave uneven out, or take a mapping that gathers, scatters or slices");
  }
}

// The rows that each rank sends to rank 0, 1, ..: torch.chunk's parts of its rows, the first one to
// itself. All ranks have and get equally many, but the parts of a rank may differ.
//
//   8 rows, 3 ranks   rank 0 gives 3 3 2   rank 1 gives 2 3 3   rank 2 gives 3 2 3
std::vector<std::vector<int64_t>> traded_rows(int64_t rows, int64_t ranks) {
  const int64_t most = (rows + ranks - 1) / ranks;
  std::vector<std::vector<int64_t>> given(static_cast<size_t>(ranks));
  for (int64_t from = 0; from < ranks; ++from) {
    for (int64_t to = 0; to < ranks; ++to) {
      const int64_t start = most * ((to - from + ranks) % ranks);
      given[static_cast<size_t>(from)].push_back(std::clamp<int64_t>(rows - start, 0, most));
    }
  }
  return given;
}

// Part j of rank i's rows goes to rank j.
at::Tensor plainly_traded(const at::Tensor& x, bool uneven) {
  const int64_t ranks = x.size(0), rows = x.size(1);
  if (!uneven) return x.unflatten(1, {ranks, rows / ranks}).transpose(0, 1).flatten(1, 2);
  const auto given = traded_rows(rows, ranks);
  std::vector<at::Tensor> got;
  for (size_t to = 0; to < given.size(); ++to) {
    std::vector<at::Tensor> parts;
    for (size_t from = 0; from < given.size(); ++from) {
      const auto cut = x[static_cast<int64_t>(from)].split_with_sizes(given[from], 0);
      parts.push_back(cut[to]);
    }
    got.push_back(at::cat(parts));
  }
  return at::stack(got);
}

at::Tensor plainly_mapped(const at::Tensor& x, const Options& options) {
  const MappingKind& kind = kind_of(options);
  if (trades(kind)) return plainly_traded(x, options["uneven"]);
  const at::Tensor one = kind.takes == Held::kEach ? x.sum(0) : x * 1;
  if (kind.gives != Held::kEach) return one;
  std::vector<int64_t> each = one.sizes().vec();
  each.insert(each.begin(), options["ranks"].get<int64_t>());
  return one.unsqueeze(0).expand(each);
}

WorkloadTensors mapping_inputs(Draw& draw, const Options& options) {
  const MappingKind& kind = kind_of(options);
  check_mapping_options(kind, options);
  std::vector<int64_t> shape = options["shape"];
  if (kind.takes == Held::kEach) shape.insert(shape.begin(), options["ranks"].get<int64_t>());
  WorkloadTensors inputs = {{"x", draw.normal(shape), layout_of(kind.takes, options)}};
  if (options["elsewhere"]) {
    const at::Tensor y = plainly_mapped(inputs[0].tensor, options);
    inputs.push_back({"beside", draw.normal(y.sizes().vec()), layout_of(kind.gives, options)});
  }
  return inputs;
}

WorkloadTensors plain_mapping(const TensorsByName& full, const Options& options) {
  const at::Tensor& x = full.at("x");
  const at::Tensor y = plainly_mapped(x, options);
  if (!options["elsewhere"]) return {{"y", y}};
  return {{"y", y + full.at("beside").tanh()}, {"x_after", x.detach()}};
}

std::vector<int64_t> uneven_parts(const Options& options, const Mesh& mesh, int64_t rank) {
  if (!options["uneven"] || trades(kind_of(options))) return {};
  const int64_t dim = cut_dim(options);
  const std::vector<int64_t> shape = options["shape"];
  const Layout layout = layout_of(Held::kPart, options);
  std::vector<int64_t> parts;
  for (const int64_t peer : mesh.peers_along("tp", rank)) {
    parts.push_back(layout.local_shape(shape, mesh, peer)[static_cast<size_t>(dim)]);
  }
  return parts;
}

at::Tensor traded(const at::Tensor& x, Communicator& tp, const Options& options) {
  const std::string name = options["mapping"];
  if (!options["uneven"]) return all_to_all_with_all_to_all_backward(x, tp, name);
  const auto given = traded_rows(x.size(0), tp.size());
  const auto own = static_cast<size_t>(tp.rank());
  std::vector<int64_t> got;
  for (const auto& from : given) got.push_back(from[own]);
  return all_to_all_with_all_to_all_backward(x, tp, name, given[own], got);
}

at::Tensor mapped(const std::string& name, const at::Tensor& x, Communicator& tp, int64_t dim,
                  const std::vector<int64_t>& sizes) {
  if (name == "copy_with_all_reduce_backward") {
    return copy_with_all_reduce_backward(x, tp, name);
  }
  if (name == "all_reduce_with_identity_backward") {
    return all_reduce_with_identity_backward(x, tp, name);
  }
  if (name == "all_gather_with_reduce_scatter_backward") {
    return all_gather_with_reduce_scatter_backward(x, tp, dim, name, sizes);
  }
  if (name == "all_gather_with_slice_backward") {
    return all_gather_with_slice_backward(x, tp, dim, name, sizes);
  }
  if (name == "reduce_scatter_with_all_gather_backward") {
    return reduce_scatter_with_all_gather_backward(x, tp, dim, name, sizes);
  }
  if (name == "slice_with_all_gather_backward") {
    return slice_with_all_gather_backward(x, tp, dim, name, sizes);
  }
  if (name == "sequence_to_hidden") return sequence_to_hidden(x, tp, name, sizes);
  return hidden_to_sequence(x, tp, name, sizes);
}

WorkloadTensors sharded_mapping(const TensorsByName& local, MeshComm& comm,
                                const Options& options) {
  const MappingKind& kind = kind_of(options);
  Communicator& tp = comm.along("tp");
  const int64_t ranks = options["ranks"];
  if (ranks != tp.size()) {
    throw_bad_input(fmt::format("option ranks is {}, but tp has {}", ranks, tp.size()),
                    "set options.ranks to tensor_parallel_size");
  }
  const auto own = [](Held held, const at::Tensor& tensor) {
    return held == Held::kEach ? tensor.squeeze(0) : tensor;
  };
  const auto output = [&](const char* name, Held held, const at::Tensor& tensor) {
    return WorkloadTensor{name, held == Held::kEach ? tensor.unsqueeze(0) : tensor,
                          layout_of(held, options)};
  };
  const auto run = [&](const at::Tensor& x) {
    if (trades(kind)) return traded(x, tp, options);
    return mapped(kind.name, x, tp, cut_dim(options),
                  uneven_parts(options, comm.mesh(), comm.rank()));
  };
  const at::Tensor x = own(kind.takes, local.at("x"));
  if (!options["elsewhere"]) return {output("y", kind.gives, run(transposed_memory(x)))};
  // This is the first node, so its backward runs last and gets the gradient that the mapping got.
  const at::Tensor beside = own(kind.gives, local.at("beside")).tanh();
  const at::Tensor kept = (x * 1).contiguous();  // sent without a copy
  const at::Tensor y = run(kept) + beside;
  return {output("y", kind.gives, y), output("x_after", kind.takes, kept.detach())};
}

}  // namespace

Workload mapping_workload() {
  return {.name = "mapping",
          .inputs = mapping_inputs,
          .plain = plain_mapping,
          .sharded = sharded_mapping};
}

}  // namespace shardproof::sim::proofs
