// The known algebra of sharding mistakes. A hypothesis is one kind of mistake: it has a file, a
// declaration here and a row in the table of diagnose.cpp. It proposes its best transformation of
// the golden, tried on all wrong ranks together; what it proposes of some ranks holds on each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/judge/explain/assembled.h"
#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

using Rows = std::vector<const ResultRow*>;
using Pieces = std::vector<const Piece*>;

// The wrong rows of one tensor, and the elements that came from their ranks.
struct Difference {
  explicit Difference(const Symptoms& symptoms);

  const Symptoms& symptoms;
  Rows wrong;
  std::vector<int64_t> ranks;             // of the wrong rows, ascending
  std::vector<int64_t> with_values;       // of them, those whose values came
  std::optional<Assembled> first_copies;  // of the elements; none: no values, or too many
  std::optional<Assembled> last_copies;   // where ranks hold other values of one element
  double wrong_count = 0;                 // wrong elements of all ranks
  double allowance = 0;                   // of an element
  double golden_size = 0;                 // root mean square of the golden
};

// Description lengths, in nats.
inline constexpr double kFreeNumber = 14;
inline constexpr double kAxisNamed = 1;

// What transformation of the golden gives what wrong ranks hold. In words:
// "<pattern> on ranks 1, 3 (tp 1)<detail>; explains 99.98% of the difference".
struct Proposal {
  std::string pattern, detail = "", likely = "";
  // Logarithm of the number of alternatives, kFreeNumber for each real number, kAxisNamed for each
  // axis.
  double description = 0;
  std::vector<int64_t> ranks = {};      // of which it is claimed; empty: all whose values came
  std::vector<double> parameters = {};  // what tells it from others of its hypothesis
  double share = -1;                    // of the squared difference; -1: a fact, or one number
  double covered = 1;                   // share of the wrong elements that it speaks of
  double left = 0;                      // root mean square of what it leaves of them
  bool names_ranks = false;             // the pattern does

  // Takes share, covered and left from `sums`, over a tensor with so many wrong elements.
  Proposal&& explaining(const Explained& sums, int64_t wrong) &&;
};

std::vector<int64_t> ranks_of(const Rows& rows);  // ascending, each once
std::vector<int64_t> ranks_of(const Pieces& pieces);
// All sets of axes that are longer than 1, single ones first.
std::vector<std::vector<std::string>> sets_of_axes(const Mesh& mesh);
// Peers along `axes` that hold the same part, per microbatch; empty when some are not there.
std::vector<Pieces> peers_along(const Mesh& mesh, const std::vector<std::string>& axes,
                                const Pieces& pieces);

std::optional<Proposal> propose_problem(const Difference& difference);  // of most wrong rows
std::optional<Proposal> propose_non_finite(const Difference& difference);
// The first draw of the first rank that differs: another stream, another seed of it, another place
// in it, or a generator that moved unseen.
std::optional<Proposal> propose_draws(const Difference& difference);

// What ranks found out beside the golden: another step, another tensor, a narrow dtype, a share of
// an update. Claimed of the ranks that found the same, all of them if they can be.
std::optional<Proposal> propose_found_out(const Difference& difference);
// One value everywhere but in padding: zeros, or where the golden has many.
std::optional<Proposal> propose_constant(const Difference& difference);
// One factor on all wrong ranks, whatever it is; or nearly one that has a meaning on this mesh and
// explains the difference. Scalars fit any factor: only one with a meaning counts there.
std::optional<Proposal> propose_factor(const Difference& difference);
// The sum or the mean of what peers hold is the golden where their own values are not. Peers are
// the ranks along one or more axes, or those that hold the same part of the tensor. Says how the
// tensor was declared and what the record says that it is.
std::optional<Proposal> propose_missing_sum(const Difference& difference);
// Declared addends whose sum is wrong: each is the whole value already, or one rank's addend of
// each wrong sum is the one too many or counts twice.
std::optional<Proposal> propose_addends(const Difference& difference);
// Two neighboring dims of a rank's own part whose memory was read column by column: a strided
// tensor taken for a dense one, or a view where a transpose was due.
std::optional<Proposal> propose_read_order(const Difference& difference);

// The others look at one copy of each element. Two dims of one size exchanged.
std::optional<Proposal> propose_transposition(const Assembled& tensor, const Mesh& mesh);
// Shifted by at most 16 along a dim. What fell in at the border, padding and dropped positions are
// no evidence for or against it.
std::optional<Proposal> propose_shift(const Assembled& tensor, const Mesh& mesh);
// The golden's chunks along a dim in another order: shards put together wrongly, zigzag confused,
// one rank's part in the place of others.
std::optional<Proposal> propose_chunk_order(const Assembled& tensor, const Mesh& mesh);
// Whole samples that are the golden's times a factor of their own: a normalization by something
// local.
std::optional<Proposal> propose_sample_factors(const Assembled& tensor, const Mesh& mesh);
// actual - golden is one vector along the last dim, repeated over all others.
std::optional<Proposal> propose_offset(const Assembled& tensor, const Mesh& mesh);
// Rows of zeros that lie k places beside the golden's along the positions: a mask that is off.
std::optional<Proposal> propose_mask_shift(const Assembled& tensor, const Mesh& mesh);

// Where no hypothesis holds: the indices at which it is wrong, and what stands there; then how many
// are wrong and by how much, and whether rounding could be all of it.
std::optional<Proposal> propose_where(const Assembled& tensor, const Mesh& mesh);
Explanation words_by_size(const Difference& difference);

}  // namespace shardproof::sim
