// Gloo takes the elements of some calls' tensors as they lie in memory, one after the other. Of a
// tensor that has gaps there, or whose dims lie in another order than on the other ranks, it makes
// wrong values and no error. Which calls do was found by making them, with torch 2.11.
#pragma once

#include <set>

#include "call.h"

namespace shardproof {

// Those of dims of size 1 mean nothing. `cloned`: of a clone, which has no gaps.
inline Integers strides_of(const at::Tensor& tensor, bool cloned) {
  const auto on_meta = tensor.options().device(at::kMeta);
  Integers out = (cloned ? at::empty_like(tensor, on_meta) : tensor).strides().vec();
  for (size_t dim = 0; dim < out.size(); ++dim) {
    if (tensor.size(static_cast<int64_t>(dim)) == 1) out[dim] = 1;
  }
  return out;
}

struct Strides {
  std::string common = {};  // " with strides [1, 4]", which all members must have
  std::string odd = {};     // "[4, 4] float32 with strides [8, 2]": what makes the result wrong
};

inline Strides strides_of_call(const std::string& op, const Tensors& sent,
                               const Tensors& received) {
  static const std::set<std::string> kInPlace{"all_reduce", "broadcast", "reduce"};
  const bool in_parts = op == "scatter" || op == "reduce_scatter";
  if (!in_parts && kInPlace.count(op) == 0 && op != "all_to_all_single") return {};
  Tensors read = op == "all_to_all_single" ? Tensors() : sent;  // of these it says what is wrong
  if (kInPlace.count(op) == 0) read.insert(read.end(), received.begin(), received.end());
  Strides out;
  Integers first;
  for (size_t i = 0; i < read.size(); ++i) {
    const at::Tensor& tensor = read[i];
    if (tensor.layout() != at::kStrided) continue;
    const bool is_cloned = op == "reduce_scatter" && i < sent.size();  // gaps go by that
    const bool is_dense = tensor.is_contiguous() || tensor.is_non_overlapping_and_dense();
    const Integers strides = strides_of(tensor, is_cloned && !is_dense);
    const bool fits = (is_cloned || is_dense) && (first.empty() || strides == first) &&
                      (op != "all_to_all_single" || tensor.is_contiguous());
    if (first.empty()) first = strides;
    const std::string text = " with strides " + list_text(strides);
    if (!fits) out.odd = tensors_text({tensor}) + text;
    if (!fits) return out;
    if (!tensor.is_contiguous() && is_dense) out.common = text;
  }
  return out;
}

}  // namespace shardproof
