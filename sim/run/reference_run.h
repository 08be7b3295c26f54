// The reference layout of a case: a run of its ranks, whose pieces lie in a folder of their own.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "sim/case/case_spec.h"
#include "sim/world/launch/world_run.h"
#include "sim/world/process/owned_fd.h"
#include "sim/world/process/worker_main.h"

namespace shardproof::sim {

// A private folder in TMPDIR that is removed with its content.
class PiecesFolder {
 public:
  // Throws Error(kBadInput) when it cannot be made, or `bytes` do not fit there.
  explicit PiecesFolder(double bytes);
  ~PiecesFolder();
  PiecesFolder(const PiecesFolder&) = delete;
  PiecesFolder& operator=(const PiecesFolder&) = delete;
  const std::string& path() const { return path_; }
  int64_t bytes() const;  // of all pieces

 private:
  std::string path_;
};

// The most that the reference's tensors take on disk.
double reference_bytes(const CaseSpec& spec);

// Whether the reference of `spec` ran well, and if so the index of its pieces in `fd`. A reference
// that its ranks refuse is bad input; one that failed is of the kind of its failure.
TaskOutcome collect_reference(const CaseSpec& spec, const std::string& folder,
                              const std::vector<RankEnding>& endings, const OwnedFd& fd);

}  // namespace shardproof::sim
