// The same training steps again and again, with the ranks on other processes each time: what the
// digests of their tensors say of hosts and of the code.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/uses/validate/finding.h"

namespace shardproof {
struct Observation;
}

namespace shardproof::sim::validate {

// {"step 1.0 forward embed.output", 32 hexadecimal digits}, in the order of observation.
using TensorDigests = std::vector<std::pair<std::string, std::string>>;

// 128 bits of BLAKE2b of the tensor's dtype, shape and bytes.
std::pair<std::string, std::string> digest_of_tensor(const Observation& observation);

// One run of a case, its digests and wrong ranks by rank (not by process).
struct RotatedRun {
  int64_t shift = 0;                      // rank r ran on process (r + shift) mod N
  bool matches = false;                   // the judge's verdict
  std::string verdict = {};               // and its message
  std::vector<int64_t> wrong_ranks = {};  // of the judge's first divergence
  std::vector<TensorDigests> digests = {};
};

// The first tensor whose digest is not that of the other runs, and the ranks that have it first.
struct Deviation {
  std::string tensor;
  std::vector<int64_t> ranks;
};
// Of each run; none: it deviates nowhere. The digests of most runs that the judge lets pass count
// as right, of a tie those of the first.
std::vector<std::vector<Deviation>> deviations_of(const std::vector<RotatedRun>& runs);

// What the runs of one case show:
//
//   every run has the same wrong digests, wherever its ranks ran     the code, by its ranks
//   the wrong ones are on one host in every wrong run                that host
//   else                                                             the hosts that are in all
std::vector<ValidationFinding> judge_rotations(const std::string& case_name,
                                               const std::vector<RotatedRun>& runs,
                                               const Hosts& hosts, int64_t round);

// The finding of a run that may be wrong on several hosts, one of which `others` name alone:
// that one.
ValidationFinding narrowed(ValidationFinding finding, const std::vector<ValidationFinding>& others);

}  // namespace shardproof::sim::validate
