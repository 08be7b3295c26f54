// The cause of a difference that other tensors of its step, or its own copies, tell.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/gradients.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// Fills found.likely from what the tensor's own values do not show: a scalar of the forward pass
// that is not equal on the ranks of an axis; a gradient on the way of which the ranks hold addends,
// whose sum is the reference; rows of a gradient that are zero, or have other factors, because
// parts of the batch do not count or count otherwise; a router whose gradient is wrong where its
// layer is right otherwise; experts whose gradients alone are far from the reference's; and a
// module whose output is wrong and whose weights are right. These count where no cause is known.
// Others replace what is known: gradients that ranks did not record, states of an optimizer, norms
// of each rank's own, and a factor that is another one in a later step. Nothing changes when no
// clue holds.
void add_clue(const RecordedRun& run, const Reference& reference, judge::Divergence& found);

// What can be recorded to learn more of a finding: the outputs of modules where a value of the
// forward or backward pass has no cause, and repeats where the error may be of roundings that grew
// from step to step. "" for others.
std::string advice_on(const RecordedRun& run, const Reference& reference,
                      const judge::Divergence& found);

// The clues that have files of their own: absent.cpp, norms.cpp, states.cpp, sequence_parts.cpp,
// left_gradients.cpp, batch_parts.cpp, experts.cpp.

// Of a state that the ranks together do not hold: the ranks that recorded their part of its
// parameter and not the state. "" for others.
std::string ranks_without_state(const RecordedRun& run, const judge::Divergence& found);

// The last step of each rank that has parameters or states, by rank.
std::map<int64_t, int64_t> last_steps(const RecordedRun& run);
// "ranks 1, 3 recorded 1 of 2 steps": those that recorded no parameter or state of this one, where
// others did. "" for none, and where none of them is among the `wrong` ones, if there are any.
std::string ranks_without_step(const RecordedRun& run, int64_t step,
                               const std::vector<int64_t>& wrong);

// "rank 0 recorded no gradient of c.weight, rank 1 none of b.weight": parts of
// parameters of which some rank recorded a gradient and no rank recorded these elements. When the
// finding is a multiple of its own reference plus that of another one, gradients of the two met in
// one call. "" for other findings, and when all is there. Of a parameter it says that the wrong
// stages alone recorded no gradient, or the wrong ranks no state of the optimizer.
std::string absent_gradients(const RecordedRun& run, const Reference& reference,
                             const judge::Divergence& found);

// The gradients of a step tell its norm: of a rank's own part, of all ranks without a
// difference between cut tensors and copies, or of the whole. Norms of shares that no rank recorded
// are known by their squares, which add up to that of the whole. "" when the finding fits none of
// these.
std::string clue_of_norm(const RecordedRun& run, const Reference& reference,
                         const judge::Divergence& found);

// That the clips of the runs have other limits, by run.json; "" for none.
std::string other_clip(const RecordedRun& run, const Reference& reference);

// Which settings of the parameter's optimizer, and its rate in the step, differ from the golden's
// by run.json; "" for none, and where one of the two does not say.
std::string other_settings(const RecordedRun& run, const Reference& reference,
                           const std::string& parameter, int64_t step, bool numbers_alone = false);

// The numbers among them for a parameter that no rule could judge in some step; "" when there are
// none. Classes and rules may differ and compute the same.
std::string settings_that_nothing_judged(const RecordedRun& run, const Reference& reference,
                                         const std::vector<judge::RankReport>& reports);

// For a parameter of float64 whose optimizer has a weight_decay: the decay that its error shows,
// where one explains all of it. "" for others, and for values that are nearly equal, since any
// factor of an update may look so.
std::string other_decay(const RecordedRun& run, const Reference& reference,
                        const judge::Divergence& found);

inline constexpr const char* kClipCoefficient = "clip_coefficient";
// The clip coefficient of the run, else the reference's, whose clip the run may lack; 1 where
// nothing was clipped.
double clip_coefficient(const RecordedRun& run, const Reference& reference, int64_t step);

// The update of a parameter that is the reference's over its clip coefficient; else "".
std::string unclipped_update(const RecordedRun& run, const Reference& reference,
                             const judge::Divergence& found);

// For a state: it is what a first step
// makes of the gradient or of its square, because the optimizer began from empty states there; or
// it lies at another place of a flat buffer. For a count of steps: both counts, and what follows
// from them. "" for other tensors and causes.
std::string clue_of_state(const RecordedRun& run, const Reference& reference,
                          const judge::Divergence& found);

// Logprobs that are wrong only at the first or the last position of ranks' parts of a sequence: the
// labels were shifted after the cut. "" for others.
std::string clue_of_edges(const RecordedRun& run, const Reference& reference,
                          const judge::Divergence& found);

// The wrong gradients of a step are the reference's plus one factor times those that the rank
// recorded a step before: they were not reset, and what was added to them was scaled, such as by
// clipping or a sum over ranks. "" for others.
std::string left_from_step_before(const RecordedRun& run, const Reference& reference, int64_t step);

// Where the forward pass of the step is wrong: a parameter of which a rank has another copy after
// it than its peers, which the update of the step does not explain: the copies had equal gradients,
// or it is many updates away from the reference's. "" where there is none.
std::string changed_copy(const RecordedRun& run, const Reference& reference, int64_t step);

// Where no piece of the tensor of the finding holds some rows of its dim 0: which, and the ranks of
// those beside them; else "".
std::string rows_of_nobody(const RecordedRun& run, const judge::Divergence& found);

// A buffer of one number, such as a counter of batches, that is the reference's of the step before:
// says so in found.pattern, and returns true.
bool explain_stale_number(const Reference& reference, judge::Divergence& found);

// A sentence for `likely`, or "". Rows
// that are zero here alone: a part of the batch does not count; unless the same columns of another
// gradient are zero too: then an activation is zero there. Rows that are multiples of the
// reference's, by a few factors that parts of one rank's rows share: parts of the batch (ranks,
// microbatches) have other weights. Those of k parts of which each is a mean over its own n_i of N
// tokens are N / (k n_i), so that their inverses add up to k; where the means are added they are N
// / n_i. Rows of all positions but the first rank's: an embedding of positions counts them from 0
// on each rank; `wrong` ranks, those of the first wrong tensor, tell axes of one size apart.
std::string clue_of_batch_parts(const std::vector<Gradient>& gradients, const Mesh& mesh,
                                const std::vector<int64_t>& wrong);

// Experts are rows of a stacked
// tensor, [.., experts, rows, columns] or of biases [.., experts, rows] with "experts" in its name,
// or tensors of their own, whose names have a number after "experts.".
//
// Where the wrong tensor is of experts: says in found.pattern which of them hold the reference's
// values of other experts, and in found.likely why, and returns true; else appends to the pattern
// which experts are wrong, if others are right.
bool explain_experts(const RecordedRun& run, const Reference& reference, judge::Divergence& found);

// Where a value of the forward pass is wrong: experts whose gradients are far from the reference's
// while those of other experts, or of all that is not an expert, are near: these experts computed
// with other weights, on other tokens, or not at all. "" where none are.
std::string clue_of_experts(const RecordedRun& run, const std::vector<Gradient>& gradients);

}  // namespace shardproof::sim::recorded
