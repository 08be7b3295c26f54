// The reference layout of a case: a run of its ranks, whose pieces lie in a folder of their own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "base/temporary_folder.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/reference_pieces.h"
#include "sim/world/launch/world_run.h"
#include "sim/world/process/worker_main.h"

namespace shardproof::sim::run {

// A private folder that is removed with its content: in TMPDIR if it is set, or else in memory if
// the pieces are few, and in /tmp if not.
class PiecesFolder {
 public:
  // Throws Error(kBadInput) when it cannot be made, or, where limits count, `bytes` do not fit.
  PiecesFolder(double bytes, bool has_limits);
  const std::string& path() const { return folder_->path(); }
  int64_t bytes() const;  // of all pieces

 private:
  std::optional<TemporaryFolder> folder_;
};

// The most that the reference's tensors take on disk.
double reference_bytes(const CaseSpec& spec, bool measured);

// kExactRun, or one for each member of a golden: below float64, and where it is `measured`.
int64_t last_reference_run(const CaseSpec& spec, bool measured);

// What the runs of a reference have given so far (sim/case/reference.h).
class ReferenceTensors {
 public:
  ReferenceTensors(CaseSpec spec, std::string folder);

  // Makes the folder of a run's pieces and returns the case of its ranks.
  CaseSpec begin(int64_t run) const;
  // Whether the run ended well; then takes its tensors: those of kExactRun as the values, and how
  // far those of the others are from them, whose pieces are removed. A reference that its ranks
  // refuse is bad input; one that failed is of the kind of its failure.
  world::TaskOutcome take(int64_t run, const std::vector<RankEnding>& endings);
  // Writes the index of the tensors to `fd`.
  world::TaskOutcome write_index(const OwnedFd& fd) const;

 private:
  CaseSpec spec_;
  std::string folder_;
  std::vector<GivenPiece> tensors_;
};

}  // namespace shardproof::sim::run
