// The known algebra of sharding mistakes. A hypothesis is one kind of mistake; it has a file, a
// declaration and a row of the table here. It proposes its best transformation of
// the golden, tried on all wrong ranks together. A proposal about some ranks holds on each of them.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/description_length.h"
#include "sim/judge/explain/assembled.h"
#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim::judge {

using Rows = std::vector<const ResultRow*>;
using Pieces = std::vector<const Piece*>;

// The wrong rows of one tensor, and the elements that came from their ranks.
struct Difference {
  explicit Difference(const Symptoms& symptoms);

  const Symptoms& symptoms;
  Rows wrong;
  std::vector<int64_t> ranks;             // ranks of the wrong rows, ascending
  std::vector<int64_t> with_values;       // those of `ranks` whose values came
  std::optional<Assembled> first_copies;  // of the elements; unset without values or with too many
  std::optional<Assembled> last_copies;   // where ranks hold different values of one element
  double wrong_count = 0;                 // wrong elements on all ranks
  double allowance = 0;                   // of one element
  double golden_size = 0;                 // root mean square of the golden
};

// The first evidence of this kind that a row has; null when it has none.
template <class Found>
const Found* evidence_of(const ResultRow& row) {
  for (const Evidence& evidence : row.evidence) {
    if (const auto* found = std::get_if<Found>(&evidence)) return found;
  }
  return nullptr;
}

inline constexpr double kAxisNamed = 1;  // nats of a description, beside kFreeNumber

// A transformation of the golden that gives the values of the wrong ranks. Its text:
// "<pattern> on ranks 1, 3 (tp 1)<detail>; explains 99.98% of the difference".
struct Proposal {
  std::string pattern, detail = "", likely = "";
  // The logarithm of the number of alternatives, plus kFreeNumber for each real number and
  // kAxisNamed for each axis.
  double description = 0;
  std::vector<int64_t> ranks = {};      // ranks of the claim; empty: all whose values came
  std::vector<double> parameters = {};  // distinguish it from other proposals of its hypothesis
  double share = -1;         // of the squared difference; -1 for a fact or a single number
  double covered = 1;        // share of the wrong elements that it covers
  double left = 0;           // root mean square of the remaining error of those
  bool names_ranks = false;  // whether the pattern names the ranks

  // Takes share, covered and left from `sums` over a tensor that has `wrong` wrong elements.
  Proposal&& explaining(const Explained& sums, int64_t wrong) &&;
};

std::vector<int64_t> ranks_of(const Rows& rows);  // ascending, each once
std::vector<int64_t> ranks_of(const Pieces& pieces);
// The ranks that such rows speak of: with sums all ranks that hold their addends.
std::vector<int64_t> spoken_of(const Symptoms& symptoms, const std::vector<int64_t>& ranks);
// The ranks that hold an element of the tensor.
std::vector<int64_t> ranks_that_hold(const Symptoms& symptoms);
// The coordinates on pp of the ranks that hold a gradient, such as that of a tied embedding.
std::set<int64_t> holders_on_pp(const Symptoms& symptoms);
// All sets of axes of size greater than 1, single axes first.
std::vector<std::vector<std::string>> sets_of_axes(const Mesh& mesh);
// Peers along `axes` that hold the same part, per microbatch; empty when some are absent.
std::vector<Pieces> peers_along(const Mesh& mesh, const std::vector<std::string>& axes,
                                const Pieces& pieces);
// Peers along `axes`, per microbatch, each with a part of its own; empty when there are others. Of
// ranks that hold several parts, as one for each expert, those of one number belong together.
std::vector<Pieces> parts_along(const Mesh& mesh, const std::vector<std::string>& axes,
                                const Pieces& pieces);

// The problem of most wrong rows.
std::optional<Proposal> propose_problem(const Difference& difference);
std::optional<Proposal> propose_non_finite(const Difference& difference);
// The first draw of the first rank that differs: it comes from another stream, another seed or
// position of its stream, or a generator that moved unseen.
std::optional<Proposal> propose_draws(const Difference& difference);

// Evidence that ranks found beside the golden: another step, another tensor, a narrow dtype, a
// share of an update. It is claimed of all ranks that found the same.
std::optional<Proposal> propose_found_out(const Difference& difference);
// One value everywhere outside of padding: zeros, or a constant where the golden has many values.
std::optional<Proposal> propose_constant(const Difference& difference);
// The relative error that a factor may have in this precision.
double factor_slack(const Symptoms& symptoms);
// One factor on all wrong ranks, whatever it is; or an approximate one that has a meaning on this
// mesh and explains the difference. Scalars fit any factor, so theirs must have a meaning.
std::optional<Proposal> propose_factor(const Difference& difference);
// Each wrong rank's values are the golden's times one factor of that rank.
std::optional<Proposal> propose_rank_factors(const Difference& difference);
// The sum or the mean of the peers' values is the golden, and their own values are not. Peers are
// the ranks along one or more axes, or those that hold the same part of the tensor. The text names
// the declared placement and the one that the values have.
std::optional<Proposal> propose_missing_sum(const Difference& difference);
// Each element is the sum or the mean of the elements at its place in the parts of the tensor that
// the peers along some axes hold: a sum over an axis that cuts the tensor.
std::optional<Proposal> propose_sum_of_parts(const Difference& difference);
// Declared addends whose sum is wrong: each is already the whole value, or one rank's addend is too
// many or counts twice in each wrong sum.
std::optional<Proposal> propose_addends(const Difference& difference);
// A gradient in which some microbatches count never or several times: the golden's gradients of
// single microbatches show how often each one does.
std::optional<Proposal> propose_microbatches(const Difference& difference);
// Two neighboring dims of a rank's own part were read in column-major order: a strided tensor was
// taken for a dense one, or a view stands where a transpose was due.
std::optional<Proposal> propose_read_order(const Difference& difference);

// The hypotheses below look at one copy of each element. Two dims of one size are exchanged.
std::optional<Proposal> propose_transposition(const Assembled& tensor, const Mesh& mesh);
// The golden is shifted by at most 16 along a dim. Elements that enter at the border, padding and
// dropped positions are not evidence for or against it.
std::optional<Proposal> propose_shift(const Assembled& tensor, const Mesh& mesh);
// The golden's chunks along a dim are in another order: shards were assembled wrongly, zigzag was
// confused with contiguous, or one rank's part stands in place of others.
std::optional<Proposal> propose_chunk_order(const Assembled& tensor, const Mesh& mesh);
// Each sample is the golden's times its own factor: a normalization by a local quantity.
std::optional<Proposal> propose_sample_factors(const Assembled& tensor, const Mesh& mesh);
// actual - golden is one vector along the last dim, repeated over all others.
std::optional<Proposal> propose_offset(const Assembled& tensor, const Mesh& mesh);
// actual - k * golden is one vector along the last dim, repeated over all others, with k or 1/k the
// size of axes: a linear's output, whose bias is right.
std::optional<Proposal> propose_factor_before_bias(const Assembled& tensor, const Mesh& mesh);
// Each token's heads of an attention's output are the golden's, each times a factor of its own.
std::optional<Proposal> propose_head_factors(const Assembled& tensor, const Mesh& mesh);
// Rows of zeros are shifted by some positions from the golden's: a mask is off.
std::optional<Proposal> propose_mask_shift(const Assembled& tensor, const Mesh& mesh);

// The selection of experts of each token is that of the token that another reading of the batch has
// at its place, position by position for sample by sample.
std::optional<Proposal> propose_token_order(const Assembled& tensor, const Mesh& mesh);

// Experts have the golden's values of other experts, as the ranks found beside the whole golden.
std::optional<Proposal> propose_other_experts(const Difference& difference);
// The gradient of a router's logits has another multiple of the side losses' parts.
std::optional<Proposal> propose_side_losses(const Difference& difference);
// Wrong sums of experts add up other results of the golden's experts.
std::optional<Proposal> propose_expert_results(const Difference& difference);
// The golden's numbers give the values by another computation, which every wrong rank found.
std::optional<Proposal> propose_computation(const Difference& difference);

// The texts when no hypothesis holds: of a selection of experts the tokens that chose others; first
// the wrong indices and the values there, else the number of wrong elements, the largest error and
// whether rounding could be the cause.
std::optional<Proposal> propose_routes(const Difference& difference);
std::optional<Proposal> propose_where(const Assembled& tensor, const Mesh& mesh);
Explanation words_by_size(const Difference& difference);
// "2.00; 2 is the size of dp" and its causes, or the number alone.
Explanation words_for_factor(double factor, const Symptoms& symptoms);
// "29/43" and its cause, for a factor in float64 that is the quotient of two counts; else empty.
Explanation words_for_quotient(double factor);

// --- The table
using Propose = std::optional<Proposal> (*)(const Difference& difference);
using ProposeForCopy = std::optional<Proposal> (*)(const Assembled& tensor, const Mesh& mesh);

// Where ranks hold different values of one element, a claim about the first copies must also be
// true of the last ones.
template <ProposeForCopy propose>
std::optional<Proposal> on_each_copy(const Difference& difference) {
  if (!difference.first_copies) return std::nullopt;
  const Mesh& mesh = difference.symptoms.mesh;
  std::optional<Proposal> found = propose(*difference.first_copies, mesh);
  if (!found || !difference.last_copies) return found;
  const std::optional<Proposal> again = propose(*difference.last_copies, mesh);
  return again && again->parameters == found->parameters ? found : std::nullopt;
}

// Facts need no comparison: the first that holds is reported.
inline constexpr Propose kFacts[] = {propose_draws, propose_problem, propose_non_finite};

// The score decides, not the order.
inline constexpr Propose kHypotheses[] = {
    propose_found_out,
    propose_constant,
    propose_factor,
    propose_rank_factors,
    propose_missing_sum,
    propose_sum_of_parts,
    propose_addends,
    propose_microbatches,
    propose_read_order,
    propose_other_experts,
    propose_side_losses,
    propose_expert_results,
    propose_computation,
    on_each_copy<propose_transposition>,
    on_each_copy<propose_shift>,
    on_each_copy<propose_chunk_order>,
    on_each_copy<propose_sample_factors>,
    on_each_copy<propose_offset>,
    on_each_copy<propose_factor_before_bias>,
    on_each_copy<propose_head_factors>,
    on_each_copy<propose_mask_shift>,
    on_each_copy<propose_token_order>,
};

// Of weights that were sent.
inline constexpr Propose kOfReceived[] = {
    propose_found_out,           propose_constant,
    propose_other_experts,       on_each_copy<propose_transposition>,
    on_each_copy<propose_shift>, on_each_copy<propose_chunk_order>,
};

}  // namespace shardproof::sim::judge
