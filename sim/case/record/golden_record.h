// The record of a golden run: every observation by name, in order, with the data to judge it. It is
// a safetensors blob (a memfd or a cache file), and all processes map the same pages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "observe/observation_kind.h"
#include "observe/phase.h"
#include "tensor/tensor_view.h"

namespace shardproof::sim {

// "forward 1 model.norm.output": phase, step and name identify an observation.
std::string record_key(Phase phase, int64_t step, const std::string& name);

// Magnitudes above this count for scale only where largest_magnitude() says that they were computed
// (masks of -1e38, for example, were not). For phase_scale those of gradients count.
inline constexpr double kLargestCounted = 1e30;

// What is known of a golden tensor besides its values.
struct GoldenFacts {
  int64_t order = 0;  // position in the golden's own run
  ObservationKind kind = ObservationKind::kUnknown;
  Phase phase = Phase::kForward;
  int64_t step = 0;
  std::string name;
  bool token_dims = false;  // dims 0 and 1 are samples and positions
  double scale = 0;         // largest_magnitude() of it
  double phase_scale = 0;   // GoldenScales::of_phase() of it
  // Largest distance of a member of the golden's ensemble in the case's precision from `value`;
  // infinite when members compute different tensors. 0 for float64.
  double scatter = 0;
  // Largest |<y, r> / <r, r> - 1| over the members y, with r this tensor: how far from 1 the factor
  // of the whole tensor is. Infinite where `scatter` is. `square` is <r, r>.
  double factor_scatter = 0;
  double square = 0;
  // Largest sums of the squares of a member's distances: of each sample of a tensor of tokens, else
  // of the whole tensor. Empty where `scatter` is infinite.
  std::vector<double> square_scatters = {};
  // All three of the first kFewMembers alone (magnitude.h), which decide most tensors.
  double few_scatter = 0, few_factor_scatter = 0;
  std::vector<double> few_square_scatters = {};
  int64_t members = 0;  // that were added; the blob does not hold it
  // A forward tensor of more than one number that lower precisions keep in float32 (logprobs), so
  // its members' error includes no rounding to the precision. One number may be exact by chance.
  bool kept_in_float32 = false;
  // Of a case that samples rows (sampled_rows.h): which of the `all_rows` indices of dim 0 are in
  // `value`, ascending. Empty: all are.
  std::vector<int64_t> rows = {};
  int64_t all_rows = 0;
  // No rank has such a tensor, and nothing is compared with it: explanations of others read it. One
  // device computes nothing again, so that the phase is free for it.
  bool is_beside() const { return phase == Phase::kRecompute; }
};

struct GoldenTensor : GoldenFacts {
  TensorView value;  // the tensor, or `rows` of it, as float64 or in its integer dtype
  // Of a reference that several ranks have made (reference_pieces.h), uint8 of the same shape: how
  // many ranks gave the element, or an addend of it. Undefined when one device has made the golden.
  TensorView given = {};
};

// The largest of `sizes` that may have left its roundings in a tensor of this scale. Larger ones
// that are apart from all others, as a mask of -1e9 is, do not count, where the next smaller one
// cannot be a rest of their roundings.
using Sizes = std::set<double, std::greater<>>;
double largest_beside(const Sizes& sizes, double scale);

// The phase_scale of a gradient that stands beside tensors of this scale, parameters among them: at
// most 1e7 times the largest gradient of its phase and step, since all of them grow with the loss.
// Where even that one is within the roundings of `beside`, all may be roundings: then `beside`.
double beside_gradient(double beside, double largest_gradient);

// The scales of the tensors of one record.
class GoldenScales {
 public:
  // Returns the tensor's own. Throws Error(kBadInput) "a fault of the golden" when a parameter,
  // gradient, loss or logprob is not finite.
  double add(const GoldenFacts& facts, const TensorView& value);
  void add(const GoldenFacts& facts, bool finite);  // of a known scale
  // largest_beside() of its phase and step, when all are added; of gradients beside_gradient().
  double of_phase(const GoldenFacts& facts) const;

 private:
  // Of a phase, a step and what stands beside such a kind: gradients of any size for gradients, all
  // up to kLargestCounted for others.
  std::map<std::tuple<Phase, int64_t, ObservationKind>, Sizes> sizes_;
  std::map<std::pair<Phase, int64_t>, double> largest_gradients_;
};

class IndexWriter;
// Puts the entry of a tensor into the index of a blob, as GoldenRecord::from_fd reads it.
void put_tensor(IndexWriter& index, const GoldenFacts& facts, Dtype dtype, int64_t offset,
                const std::vector<int64_t>& shape);

class GoldenRecord {
 public:
  // Maps the blob, or the files that an index of pieces names. The tensors are views of the mapping
  // and keep it alive; the caller may close the descriptor. Throws Error(kBadInput) when it is not
  // a golden's blob or is damaged.
  static GoldenRecord from_fd(int fd);
  // A record of these tensors, in this order; sets their order and their scales. Throws as
  // GoldenScales does.
  static GoldenRecord of(std::vector<GoldenTensor> tensors);
  const GoldenTensor* find(Phase phase, int64_t step, const std::string& name) const;  // null: none
  const std::vector<GoldenTensor>& tensors() const { return tensors_; }  // in golden order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void add(GoldenTensor tensor);

  std::vector<GoldenTensor> tensors_;
  std::unordered_map<std::string, size_t> by_key_;
  std::map<std::string, std::string> metadata_;
};

// In the metadata of a golden of one device: how many tokens have a logprob that the loss counts,
// or that is scored where nothing trains.
inline constexpr const char* kScoredTokens = "scored_tokens";

// Skipped steps that depend on how a gradient is summed.
//
// One device sums a float16 gradient over the whole batch in float16. Ranks, and microbatches, sum
// a part each, and the parts in float32, where nothing overflows. So correct runs skip different
// steps where the whole sum exceeds float16 and its parts do not, or where parts do that cancel.

// In the metadata of a golden in float16: the steps, "1 4", in which sums of parts decide otherwise
// than the golden does.
inline constexpr const char* kPartedSkips = "parted_skips";

}  // namespace shardproof::sim
