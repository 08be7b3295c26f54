#include "sim/run/reference_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "model/config.h"
#include "model/weights.h"
#include "sim/case/record/reference_pieces.h"
#include "sim/case/reference.h"
#include "sim/judge/verdict/verdict.h"
#include "sim/run/limits.h"

namespace shardproof::sim {

namespace fs = std::filesystem;

namespace {

// Throws unless every parameter is there after every step: one that neither layout observes would
// not be missed otherwise.
void check_parameters(const CaseSpec& spec, const std::vector<RankPieces>& ranks) {
  if (!spec.is(ModelWorkload::kTrain)) return;
  std::set<std::pair<int64_t, std::string>> seen;
  for (const RankPieces& rank : ranks) {
    for (const GivenPiece& piece : rank.pieces) seen.emplace(piece.facts.step, piece.facts.name);
  }
  for (const auto& [name, shape] : weight_shapes(ModelConfig::from_json(spec.model))) {
    for (int64_t step = 1; step <= spec.steps; ++step) {
      if (seen.contains({step, "param." + name})) continue;
      throw Error({.kind = ErrorKind::kFailed,
                   .what = fmt::format("its ranks gave no param.{} of step {}", name, step),
                   .fix = "compare the reference's layout with one device",
                   .code = "threw"});
    }
  }
}

}  // namespace

PiecesFolder::PiecesFolder(double bytes) {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  const std::string place = error ? "/tmp" : temporary.string();
  check_room("the reference's pieces in TMPDIR,", place, bytes);
  std::string name = place + "/shardproof-reference-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("cannot make a folder in '{}' for the reference: {}", place,
                                     std::strerror(errno)),
                 .fix = "set TMPDIR to a folder that can be written to"});
  }
  path_ = name;
}

PiecesFolder::~PiecesFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

int64_t PiecesFolder::bytes() const {
  int64_t sum = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    sum += static_cast<int64_t>(entry.file_size(ignored));
  }
  return sum;
}

double reference_bytes(const CaseSpec& spec) {
  constexpr double kOfElement = 9;  // its float64 value and who gave it
  if (!spec.is(ModelWorkload::kTrain)) return 0;
  const double kinds = spec.optimizer.kind == OptimizerKind::kAdamW ? 4 : 2;
  CaseSpec one = spec;
  one.precision = Precision::kFloat64;
  return kinds * static_cast<double>(spec.steps) * save_bytes(one) / 8 * kOfElement;
}

TaskOutcome collect_reference(const CaseSpec& spec, const std::string& folder,
                              const std::vector<RankEnding>& endings, const OwnedFd& fd) {
  const std::string who = fmt::format("the reference ({}): ", reference_name(spec.reference));
  const CaseResult ran = judge(reference_case(spec, folder), endings);
  if (ran.verdict != Verdict::kMatch) {
    const bool refused = ran.verdict == Verdict::kRefused || ran.verdict == Verdict::kBadInput;
    return {.kind = refused ? ResultKind::kBadInput : ran.kind, .message = who + ran.message};
  }
  try {
    std::vector<RankPieces> ranks;
    for (const RankEnding& ending : endings) {
      ranks.push_back(RankPieces::read(folder, ending.rank));
    }
    check_parameters(spec, ranks);
    const std::string index = index_of_pieces(folder, ranks);
    if (::write(fd.get(), index.data(), index.size()) != static_cast<ssize_t>(index.size())) {
      throw InternalError("the index of the reference cannot be written");
    }
  } catch (const Error& error) {
    const bool failed = error.kind() == ErrorKind::kFailed;
    return {.kind = failed ? ResultKind::kThrew : ResultKind::kBadInput,
            .message = who + error.what()};
  }
  return {.ok = true};
}

}  // namespace shardproof::sim
