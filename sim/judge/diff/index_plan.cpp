#include "sim/judge/diff/index_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/digest.h"
#include "base/error.h"
#include "sim/case/record/sampled_rows.h"

namespace shardproof::sim::judge {

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

namespace {

// The golden token of each local token: the token map, cut by the layout over dims 0 and 1.
std::vector<int64_t> local_tokens(const TensorView& token_map, const Layout& layout,
                                  const Mesh& mesh, int64_t rank, int64_t token_count,
                                  IndexPlan& plan) {
  const int64_t samples = token_map.size(0);
  const int64_t positions = token_map.size(1);
  const int64_t* tokens = token_map.data<int64_t>();
  const std::vector<int64_t> rows = layout.indices(0, samples, mesh, rank);
  const std::vector<int64_t> columns = layout.indices(1, positions, mesh, rank);
  plan.local_shape[0] = static_cast<int64_t>(rows.size());
  plan.local_shape[1] = static_cast<int64_t>(columns.size());
  std::vector<int64_t> local;
  local.reserve(rows.size() * columns.size());
  for (const int64_t row : rows) {
    for (const int64_t column : columns) {
      const int64_t token = row < 0 || column < 0 ? -1 : tokens[row * positions + column];
      if (token < -1 || token >= token_count) {
        throw_bad_input(
            fmt::format("token_map holds {}, the golden has {} tokens", token, token_count),
            "map each token to sample * S + position, padding to -1");
      }
      local.push_back(token);
    }
  }
  return local;
}

void fill_dims(IndexPlan& plan, const Layout& layout, const TensorView& token_map, const Mesh& mesh,
               int64_t rank) {
  const std::vector<int64_t> strides = contiguous_strides(plan.global_shape);
  plan.local_shape = plan.global_shape;
  size_t first = 0;
  if (token_map.defined()) {
    if (plan.global_shape.size() < 2 || token_map.dim() != 2) {
      throw_bad_input(fmt::format("a token map of {} dims for a golden tensor of {}",
                                  token_map.dim(), plan.global_shape.size()),
                      "token maps are [b, s] and stand for dims 0 and 1");
    }
    const int64_t token_count = plan.global_shape[0] * plan.global_shape[1];
    plan.dims.push_back(local_tokens(token_map, layout, mesh, rank, token_count, plan));
    plan.strides.push_back(strides[1]);
    const auto& tokens = plan.dims[0];
    plan.only_padding = std::all_of(tokens.begin(), tokens.end(), [](int64_t t) { return t < 0; });
    plan.tokens = digest_of(tokens.data(), tokens.size() * sizeof(int64_t)) | 1;
    first = 2;
  }
  for (size_t d = first; d < plan.global_shape.size(); ++d) {
    plan.dims.push_back(layout.indices(static_cast<int64_t>(d), plan.global_shape[d], mesh, rank));
    plan.local_shape[d] = static_cast<int64_t>(plan.dims.back().size());
    plan.strides.push_back(strides[d]);
  }
}

int64_t held_elements(const IndexPlan& plan) {
  int64_t held = 1;
  for (const std::vector<int64_t>& dim : plan.dims) {
    held *= std::count_if(dim.begin(), dim.end(), [](int64_t index) { return index >= 0; });
  }
  return held;
}

// Leaves only the indices of drawn rows along the first entry of dims, counted as the golden does.
void keep_drawn(IndexPlan& plan) {
  const int64_t all = held_elements(plan);
  const bool tokens = plan.dims.size() < plan.global_shape.size();
  const int64_t of_row = tokens ? plan.global_shape[1] : 1;
  std::vector<int64_t> indices;
  for (size_t i = 0; i < plan.dims[0].size(); ++i) {
    const int64_t index = plan.dims[0][i];
    if (index < 0) continue;
    const auto at = std::lower_bound(plan.drawn.begin(), plan.drawn.end(), index / of_row);
    if (at == plan.drawn.end() || *at != index / of_row) continue;
    indices.push_back((at - plan.drawn.begin()) * of_row + index % of_row);
    plan.kept.push_back(static_cast<int64_t>(i));
  }
  plan.dims[0] = std::move(indices);
  plan.undrawn = all - held_elements(plan);
}

bool is_whole(const std::vector<int64_t>& indices, int64_t golden_size) {
  if (static_cast<int64_t>(indices.size()) != golden_size) return false;
  for (int64_t i = 0; i < golden_size; ++i) {
    if (indices[static_cast<size_t>(i)] != i) return false;
  }
  return true;
}

// Merges consecutive golden indices into one run of length * inner elements.
std::vector<IndexPlan::Run> runs_of(const std::vector<int64_t>& indices, int64_t inner) {
  std::vector<IndexPlan::Run> runs;
  const auto size = static_cast<int64_t>(indices.size());
  for (int64_t i = 0; i < size;) {
    int64_t end = i + 1;
    const int64_t start = indices[static_cast<size_t>(i)];
    while (end < size && start >= 0 && indices[static_cast<size_t>(end)] == start + (end - i))
      ++end;
    if (start >= 0 && inner > 0) runs.push_back({i * inner, start * inner, (end - i) * inner});
    i = end;
  }
  return runs;
}

// The golden offsets of all combinations of indices of the outer dims, in local order.
std::vector<int64_t> row_offsets(const IndexPlan& plan, size_t outer_dims) {
  std::vector<int64_t> offsets{0};
  for (size_t d = 0; d < outer_dims; ++d) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * plan.dims[d].size());
    for (const int64_t offset : offsets) {
      for (const int64_t index : plan.dims[d]) {
        next.push_back(offset < 0 || index < 0 ? -1 : offset + index * plan.strides[d]);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

void fill_runs(IndexPlan& plan) {
  const std::vector<int64_t> shape = plan.golden_shape();
  const auto golden_size = [&](size_t d) {  // golden size of an entry of dims
    const size_t merged = shape.size() - plan.dims.size();
    if (d == 0 && merged == 1) return shape[0] * shape[1];
    return shape[d + merged];
  };
  size_t d = plan.dims.size();
  int64_t inner = 1;
  while (d > 0 && is_whole(plan.dims[d - 1], golden_size(d - 1))) inner *= golden_size(--d);
  if (d == 0) {
    plan.rows = {0};
    plan.row_length = inner;
    if (inner > 0) plan.runs = {{0, 0, inner}};
  } else {
    plan.row_length = static_cast<int64_t>(plan.dims[d - 1].size()) * inner;
    plan.runs = runs_of(plan.dims[d - 1], inner);
    plan.rows = row_offsets(plan, d - 1);
  }
  plan.for_each_run([&](int64_t, int64_t, int64_t length) { plan.count += length; });
}

void fill_coverage(IndexPlan& plan) {
  plan.covered = plan.coverage_of_all = 1;
  const std::vector<int64_t> shape = plan.golden_shape();
  const size_t merged = shape.size() - plan.dims.size();
  for (size_t d = 0; d < plan.dims.size(); ++d) {
    uint64_t here = 0;
    for (const int64_t index : plan.dims[d]) here += index < 0 ? 0 : coverage_hash(d, index);
    const int64_t size = d == 0 && merged == 1 ? shape[0] * shape[1] : shape[d + merged];
    uint64_t all = 0;
    for (int64_t index = 0; index < size; ++index) all += coverage_hash(d, index);
    plan.covered *= here;
    plan.coverage_of_all *= all;
  }
}

// The replicas whose coordinates on the partial axes equal this rank's.
std::vector<int64_t> same_addend(std::vector<int64_t> replicas,
                                 const std::vector<std::string>& partial_axes, const Mesh& mesh,
                                 int64_t rank) {
  std::erase_if(replicas, [&](int64_t other) {
    return std::any_of(partial_axes.begin(), partial_axes.end(), [&](const std::string& axis) {
      return mesh.coordinate(axis, other) != mesh.coordinate(axis, rank);
    });
  });
  return replicas;
}

}  // namespace

uint64_t coverage_hash(size_t dim, int64_t index) {
  return mix_bits((static_cast<uint64_t>(dim) << 56) + static_cast<uint64_t>(index) + 1) | 1;
}

IndexPlan make_index_plan(const std::vector<int64_t>& global_shape, const Layout& layout,
                          const TensorView& token_map, const std::vector<std::string>& partial_axes,
                          const Mesh& mesh, int64_t rank, const std::vector<int64_t>& drawn) {
  IndexPlan plan;
  plan.global_shape = global_shape;
  plan.drawn = drawn;
  try {
    const Layout resolved = layout.resolved(static_cast<int64_t>(global_shape.size()));
    plan.layout = layout.replicated() ? "" : resolved.describe();
    fill_dims(plan, resolved, token_map, mesh, rank);
    if (!drawn.empty()) keep_drawn(plan);
    fill_runs(plan);
    fill_coverage(plan);
    plan.replicas = same_addend(resolved.replicas_of(mesh, rank), partial_axes, mesh, rank);
  } catch (const Error& error) {
    plan = IndexPlan();
    plan.global_shape = global_shape;
    plan.problem = fmt::format("the declared layout {} does not fit the golden's [{}]: {}",
                               layout.describe(), fmt::join(global_shape, ", "), error.fact());
  }
  return plan;
}

std::vector<int64_t> IndexPlan::golden_shape() const { return drawn_shape(drawn, global_shape); }

int64_t IndexPlan::local_offset(int64_t offset) const {
  if (drawn.empty()) return offset;
  int64_t block = 1;
  for (size_t d = 1; d < dims.size(); ++d) block *= static_cast<int64_t>(dims[d].size());
  return kept[static_cast<size_t>(offset / block)] * block + offset % block;
}

std::vector<int64_t> IndexPlan::global_index(int64_t offset) const {
  std::vector<int64_t> index = unravel(offset, golden_shape());
  if (!drawn.empty()) index[0] = drawn[static_cast<size_t>(index[0])];
  return index;
}

TensorView kept_rows(const TensorView& local, const IndexPlan& plan) {
  if (plan.drawn.empty()) return local;
  const auto rows = static_cast<int64_t>(plan.kept.size());
  std::vector<int64_t> shape = {rows};
  for (size_t d = 1; d < plan.dims.size(); ++d) {
    shape.push_back(static_cast<int64_t>(plan.dims[d].size()));
  }
  size_t block = static_cast<size_t>(element_bytes(local.dtype()));
  for (size_t d = 1; d < shape.size(); ++d) block *= static_cast<size_t>(shape[d]);
  const std::shared_ptr<char[]> bytes(new char[plan.kept.size() * block + 1]);
  for (size_t i = 0; block > 0 && i < plan.kept.size(); ++i) {
    std::memcpy(bytes.get() + i * block,
                static_cast<const char*>(local.bytes()) + static_cast<size_t>(plan.kept[i]) * block,
                block);
  }
  return {std::shared_ptr<const void>(bytes, bytes.get()), local.dtype(), shape};
}

std::vector<int64_t> unravel(int64_t offset, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t size = std::max<int64_t>(shape[d], 1);
    index[d] = offset % size;
    offset /= size;
  }
  return index;
}

std::string not_given(const GoldenTensor& golden, const IndexPlan& plan) {
  if (!golden.given.defined()) return "";
  const uint8_t* givers = golden.given.data<uint8_t>();
  int64_t lacking = 0;
  uint8_t usual = 0;
  plan.for_each_run([&](int64_t, int64_t offset, int64_t length) {
    for (int64_t i = offset; i < offset + length; ++i) {
      if (usual == 0) usual = givers[i];
      lacking += givers[i] == 0 || givers[i] != usual;
    }
  });
  if (lacking == 0) return "";
  return fmt::format("the reference's ranks did not give {} of these {} elements", lacking,
                     plan.count);
}

}  // namespace shardproof::sim::judge
