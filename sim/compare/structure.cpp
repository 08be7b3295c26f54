#include "sim/compare/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/compare/addends.h"

namespace shardproof::sim {
namespace {

constexpr int64_t kLargestAssembled = 4 << 20;
constexpr int64_t kLargestShift = 16;
constexpr int64_t kMostChunks = 128;

struct Walk {  // element = outer * (size * inner) + index * inner + i
  int64_t outer, size, inner;
};

Walk walk_along(const std::vector<int64_t>& shape, size_t dim) {
  Walk walk{1, shape[dim], 1};
  for (size_t d = 0; d < dim; ++d) walk.outer *= shape[d];
  for (size_t d = dim + 1; d < shape.size(); ++d) walk.inner *= shape[d];
  return walk;
}

std::string dim_name(const Assembled& tensor, size_t dim) {
  if (tensor.token_dims && dim == 0) return "the samples";
  if (tensor.token_dims && dim == 1) return "the positions";
  return fmt::format("dim {}", dim);
}

// Counts how a proposed source explains the actual elements; false at the first contradiction.
class Evidence {
 public:
  explicit Evidence(const Assembled& tensor) : tensor_(tensor) {}
  bool accepts(int64_t element, int64_t source) {
    const auto to = static_cast<size_t>(element), from = static_cast<size_t>(source);
    if (!tensor_.known[to] || !tensor_.known[from]) return true;
    if (!tensor_.equal(tensor_.actual[to], tensor_.golden[from])) return false;
    ++agreeing_;
    if (!tensor_.equal(tensor_.actual[to], tensor_.golden[to])) ++explained_;
    return true;
  }
  int64_t explained() const { return explained_; }  // wrong elements that it explains
  int64_t agreeing() const { return agreeing_; }

 private:
  const Assembled& tensor_;
  int64_t explained_ = 0, agreeing_ = 0;
};

int64_t count_wrong(const Assembled& tensor) {
  int64_t wrong = 0;
  for (size_t i = 0; i < tensor.actual.size(); ++i) {
    if (tensor.known[i] && !tensor.equal(tensor.actual[i], tensor.golden[i])) ++wrong;
  }
  return wrong;
}

bool shifted_by(const Assembled& tensor, const Walk& walk, int64_t shift, int64_t wrong) {
  Evidence evidence(tensor);
  for (int64_t outer = 0; outer < walk.outer; ++outer) {
    for (int64_t index = 0; index < walk.size; ++index) {
      const int64_t source = index - shift;
      if (source < 0 || source >= walk.size) continue;
      for (int64_t i = 0; i < walk.inner; ++i) {
        const int64_t base = outer * walk.size * walk.inner + i;
        if (!evidence.accepts(base + index * walk.inner, base + source * walk.inner)) return false;
      }
    }
  }
  return evidence.explained() >= 2 && 2 * evidence.explained() >= wrong;
}

// -1: no golden chunk fits the actual one.
int64_t source_of_chunk(const Assembled& tensor, const Walk& walk, int64_t chunk_length,
                        int64_t chunk, int64_t chunks) {
  const auto fits = [&](int64_t source) {
    Evidence evidence(tensor);
    for (int64_t outer = 0; outer < walk.outer; ++outer) {
      const int64_t base = outer * walk.size * walk.inner;
      const int64_t length = chunk_length * walk.inner;
      for (int64_t i = 0; i < length; ++i) {
        if (!evidence.accepts(base + chunk * length + i, base + source * length + i)) return false;
      }
    }
    return evidence.agreeing() > 0;
  };
  if (fits(chunk)) return chunk;
  for (int64_t source = 0; source < chunks; ++source) {
    if (source != chunk && fits(source)) return source;
  }
  return -1;
}

bool chunk_is_known(const Assembled& tensor, const Walk& walk, int64_t chunk_length,
                    int64_t chunk) {
  for (int64_t outer = 0; outer < walk.outer; ++outer) {
    const int64_t start = (outer * walk.size + chunk * chunk_length) * walk.inner;
    for (int64_t i = 0; i < chunk_length * walk.inner; ++i) {
      if (tensor.known[static_cast<size_t>(start + i)]) return true;
    }
  }
  return false;
}

// Where each chunk of the actual tensor comes from, or empty when that explains nothing. Chunks
// that no wrong rank holds are where they belong.
std::vector<int64_t> chunk_order(const Assembled& tensor, const Walk& walk, int64_t chunks) {
  std::vector<int64_t> order, known_sources;
  bool moved = false;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t length = walk.size / chunks;
    order.push_back(chunk);
    if (!chunk_is_known(tensor, walk, length, chunk)) continue;
    const int64_t source = source_of_chunk(tensor, walk, length, chunk, chunks);
    if (source < 0) return {};
    moved = moved || source != chunk;
    order.back() = source;
    known_sources.push_back(source);
  }
  std::sort(known_sources.begin(), known_sources.end());
  const bool repeats =
      std::adjacent_find(known_sources.begin(), known_sources.end()) != known_sources.end();
  return moved && !repeats ? order : std::vector<int64_t>();
}

std::string order_text(const std::vector<int64_t>& order) {
  std::string text;
  for (size_t i = 0; i < order.size() && i < 16; ++i) {
    text += (i > 0 ? " " : "") + std::to_string(order[i]);
  }
  return order.size() > 16 ? text + " .." : text;
}

std::string axes_of_size(const Mesh& mesh, int64_t size) {
  std::string axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == size) axes += (axes.empty() ? "" : " or ") + axis.name;
  }
  return axes;
}

std::string likely_order(const Mesh& mesh, int64_t chunks) {
  if (const std::string axes = axes_of_size(mesh, chunks); !axes.empty()) {
    return fmt::format("the shards of {} were put together in a wrong order", axes);
  }
  const std::string axes = chunks % 2 == 0 ? axes_of_size(mesh, chunks / 2) : "";
  if (!axes.empty()) {
    return fmt::format("zigzag chunks ({} = 2 x the size of {}) were confused", chunks, axes);
  }
  return "the parts were put together in a wrong order";
}

// "3", "2..5", "1, 4, 6"
std::string index_text(const std::set<int64_t>& indices) {
  const int64_t first = *indices.begin(), last = *indices.rbegin();
  if (first == last) return std::to_string(first);
  if (last - first + 1 == static_cast<int64_t>(indices.size())) {
    return fmt::format("{}..{}", first, last);
  }
  std::string text;
  size_t count = 0;
  for (const int64_t index : indices) {
    if (++count > 8) return text + " ..";
    text += (text.empty() ? "" : ", ") + std::to_string(index);
  }
  return text;
}

}  // namespace

bool Assembled::equal(double a, double b) const {
  return std::fabs(a - b) <= 4 * allowance || a == b;
}

std::optional<Assembled> assemble(const std::vector<const Piece*>& pieces) {
  if (pieces.empty()) return std::nullopt;
  Assembled out;
  out.shape = pieces.front()->global_shape;
  out.token_dims = pieces.front()->dims.size() + 1 == out.shape.size();
  out.zeros_are_exact = pieces.front()->name == "logprobs";
  int64_t count = 1;
  for (const int64_t size : out.shape) count *= size;
  if (count > kLargestAssembled) return std::nullopt;
  out.known.assign(static_cast<size_t>(count), 0);
  out.actual.assign(static_cast<size_t>(count), 0);
  out.golden.assign(static_cast<size_t>(count), 0);
  for (const Piece* piece : pieces) {
    if (piece->global_shape != out.shape) return std::nullopt;
    out.allowance = std::max(out.allowance, piece->allowance);
    for_each_element(*piece, [&](int64_t offset, size_t local) {
      const auto at = static_cast<size_t>(offset);
      if (out.known[at]) return;
      out.known[at] = 1;
      out.actual[at] = piece->actual[local];
      out.golden[at] = piece->golden[local];
    });
  }
  return out;
}

std::optional<Explanation> explain_shift(const Assembled& tensor) {
  const int64_t wrong = count_wrong(tensor);
  for (int64_t size = 1; size <= kLargestShift; ++size) {
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      if (size >= tensor.shape[dim]) continue;
      const Walk walk = walk_along(tensor.shape, dim);
      for (const int64_t shift : {size, -size}) {
        if (!shifted_by(tensor, walk, shift, wrong)) continue;
        return Explanation{fmt::format("shifted by {} along {}: actual[i] is golden[i {} {}]",
                                       shift, dim_name(tensor, dim), shift > 0 ? "-" : "+", size),
                           "an offset, a mask or a target is off by " + std::to_string(size)};
      }
    }
  }
  return std::nullopt;
}

std::optional<Explanation> explain_permutation(const Assembled& tensor, const Mesh& mesh) {
  for (int64_t chunks = 2; chunks <= kMostChunks; ++chunks) {
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      if (tensor.shape[dim] % chunks != 0) continue;
      const std::vector<int64_t> order = chunk_order(tensor, walk_along(tensor.shape, dim), chunks);
      if (order.empty()) continue;
      return Explanation{fmt::format("the {} chunks along {} are the golden's in the order {}",
                                     chunks, dim_name(tensor, dim), order_text(order)),
                         likely_order(mesh, chunks)};
    }
  }
  return std::nullopt;
}

std::optional<Explanation> explain_transposition(const Assembled& tensor) {
  const size_t dims = tensor.shape.size();
  const int64_t wrong = count_wrong(tensor);
  for (size_t a = 0; a + 1 < dims; ++a) {
    for (size_t b = a + 1; b < dims; ++b) {
      if (tensor.shape[a] != tensor.shape[b] || tensor.shape[a] < 2) continue;
      const int64_t size = tensor.shape[a];
      const int64_t inner_a = walk_along(tensor.shape, a).inner;
      const int64_t inner_b = walk_along(tensor.shape, b).inner;
      Evidence evidence(tensor);
      bool fits = true;
      for (int64_t e = 0; fits && e < static_cast<int64_t>(tensor.actual.size()); ++e) {
        const int64_t i = e / inner_a % size, j = e / inner_b % size;
        fits = evidence.accepts(e, e + (j - i) * inner_a + (i - j) * inner_b);
      }
      if (!fits || evidence.explained() < 2 || 2 * evidence.explained() < wrong) continue;
      return Explanation{fmt::format("dims {} and {} are transposed", a, b),
                         "a transpose is missing or done twice"};
    }
  }
  return std::nullopt;
}

std::optional<Explanation> explain_part(const Assembled& tensor) {
  if (tensor.shape.empty()) return std::nullopt;
  std::vector<std::set<int64_t>> wrong(tensor.shape.size()), seen(tensor.shape.size());
  bool zeros = true, golden_zeros = true;
  double golden_square = 0, product = 0, actual_square = 0;
  for (size_t e = 0; e < tensor.actual.size(); ++e) {
    if (!tensor.known[e]) continue;
    const bool bad = !(std::fabs(tensor.actual[e] - tensor.golden[e]) <= tensor.allowance) ||
                     (tensor.zeros_are_exact && tensor.golden[e] == 0 && tensor.actual[e] != 0);
    auto rest = static_cast<int64_t>(e);
    for (size_t d = tensor.shape.size(); d-- > 0;) {
      const int64_t index = rest % tensor.shape[d];
      rest /= tensor.shape[d];
      seen[d].insert(index);
      if (bad) wrong[d].insert(index);
    }
    if (!bad) continue;
    zeros = zeros && tensor.actual[e] == 0;
    golden_zeros = golden_zeros && tensor.golden[e] == 0;
    golden_square += tensor.golden[e] * tensor.golden[e];
    product += tensor.golden[e] * tensor.actual[e];
    actual_square += tensor.actual[e] * tensor.actual[e];
  }
  if (wrong[0].empty()) return std::nullopt;
  std::string where;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (wrong[d].empty() || wrong[d].size() == seen[d].size()) continue;
    const bool in_a_row =
        *wrong[d].rbegin() - *wrong[d].begin() + 1 == static_cast<int64_t>(wrong[d].size());
    if (!in_a_row && 2 * wrong[d].size() > seen[d].size()) continue;
    where += fmt::format("{}{} {}", where.empty() ? "" : ", ", dim_name(tensor, d),
                         index_text(wrong[d]));
  }
  Explanation out;
  if (!where.empty()) out.pattern = "wrong only at " + where;
  const std::string what = where.empty() ? "the wrong elements" : "which";
  const auto append = [&](const std::string& text) {
    out.pattern += (out.pattern.empty() ? "" : ", ") + what + " " + text;
  };
  const double factor = golden_square > 0 ? product / golden_square : 0;
  const double left = actual_square - factor * product;
  if (golden_zeros) {
    append("are exactly zero in the golden");
    out.likely = "padding or dropped positions are counted";
  } else if (zeros) {
    append("are all zero");
    out.likely = "one part was dropped or never filled";
  } else if (factor != 0 && left <= 1e-12 * actual_square && wrong[0].size() > 1) {
    append(fmt::format("are {:.6g} x golden", factor));
  }
  if (out.pattern.empty()) return std::nullopt;
  return out;
}

}  // namespace shardproof::sim
