#include "sim/run/reference_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "model/weights.h"
#include "sim/case/inputs/case_data.h"
#include "sim/case/record/magnitude.h"
#include "sim/case/reference.h"
#include "sim/judge/verdict/verdict.h"
#include "sim/run/limits.h"

namespace shardproof::sim::run {

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
  for (const auto& [name, shape] : weight_shapes(load_case_config(spec))) {
    for (int64_t step = 1; step <= spec.steps; ++step) {
      if (seen.contains({step, "param." + name})) continue;
      throw_failed(fmt::format("its ranks gave no param.{} of step {}", name, step),
                   "compare the reference's layout with one device", "threw");
    }
  }
}

// The reference computes in float64, where ranks observe what a loss counts by decisions (which of
// two is better). Roundings change these in lower precisions, whose ranks do not observe it.
bool is_of_float64_alone(const GivenPiece& tensor) { return is_of_decisions(tensor.facts.name); }

// A folder on disk, or in memory where there is much more than few pieces need: hundreds of small
// files, which live for seconds, cost a file system more than the ranks that write them.
std::string place_of_pieces(double bytes) {
  constexpr double kFew = 16 << 20;
  constexpr uintmax_t kMuch = uintmax_t{1} << 30;
  const fs::path memory = "/dev/shm";
  std::error_code error;
  const bool chosen = std::getenv("TMPDIR") != nullptr;
  if (!chosen && bytes <= kFew && ::access(memory.c_str(), W_OK) == 0 &&
      fs::space(memory, error).available >= kMuch && !error) {
    return memory.string();
  }
  const fs::path temporary = fs::temp_directory_path(error);
  return error ? "/tmp" : temporary.string();
}

template <class Work>
world::TaskOutcome guarded(const std::string& who, const Work& work) {
  try {
    work();
    return {.ok = true};
  } catch (...) {
    const world::ExceptionFacts facts = world::facts_of_exception(ResultKind::kInternal);
    const bool refused = facts.kind == ResultKind::kRefused;
    return {.kind = refused ? ResultKind::kBadInput : facts.kind, .message = who + facts.message};
  }
}

}  // namespace

PiecesFolder::PiecesFolder(double bytes, bool has_limits) {
  const std::string place = place_of_pieces(bytes);
  if (has_limits) check_room("the reference's pieces,", place, bytes);
  try {
    folder_.emplace(place + "/shardproof-reference-");
  } catch (const std::system_error& error) {
    throw_bad_input(fmt::format("cannot make a folder in '{}' for the reference: {}", place,
                                error.code().message()),
                    "set TMPDIR to a folder that can be written to");
  }
}

int64_t PiecesFolder::bytes() const {
  int64_t sum = 0;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(path(), ignored)) {
    if (!entry.is_regular_file(ignored)) continue;
    sum += static_cast<int64_t>(entry.file_size(ignored));
  }
  return sum;
}

double reference_bytes(const CaseSpec& spec, bool measured) {
  constexpr double kOfElement = 9;  // its float64 value and who gave it
  if (!spec.is(ModelWorkload::kTrain)) return 0;
  const double kinds = spec.optimizer.kind != OptimizerKind::kSgd ? 4 : 2;
  CaseSpec one = spec;
  one.precision = Precision::kFloat64;
  // The exact run, and one of the others at a time.
  const double runs = last_reference_run(spec, measured) == kExactRun ? 1 : 2;
  return runs * kinds * static_cast<double>(spec.steps) * save_bytes(one) / 8 * kOfElement;
}

int64_t last_reference_run(const CaseSpec& spec, bool measured) {
  return spec.precision == Precision::kFloat64 && !measured ? kExactRun : kPerturbed;
}

ReferenceTensors::ReferenceTensors(CaseSpec spec, std::string folder)
    : spec_(std::move(spec)), folder_(std::move(folder)) {}

CaseSpec ReferenceTensors::begin(int64_t run) const {
  fs::create_directory(folder_of_run(folder_, run));
  return reference_case(spec_, folder_, run);
}

world::TaskOutcome ReferenceTensors::take(int64_t run, const std::vector<RankEnding>& endings) {
  const std::string who = fmt::format("the reference ({}): ", reference_name(spec_.reference));
  // Scores of one rank may be too near each other while the others go on.
  const auto refusal = std::find_if(endings.begin(), endings.end(), is_refusal);
  if (refusal != endings.end()) {
    return {.kind = ResultKind::kBadInput, .message = who + refusal->message};
  }
  const judge::CaseResult ran = judge::judge(reference_case(spec_, folder_, run), endings);
  if (ran.verdict != Verdict::kMatch) {
    return {.kind = ran.kind, .message = who + ran.message};
  }
  const std::string own = folder_of_run(folder_, run);
  return guarded(who, [&] {
    std::vector<RankPieces> ranks;
    for (const RankEnding& ending : endings) ranks.push_back(RankPieces::read(own, ending.rank));
    check_parameters(spec_, ranks);
    std::vector<GivenPiece> tensors = tensors_of(ranks);
    if (spec_.precision != Precision::kFloat64) std::erase_if(tensors, is_of_float64_alone);
    if (run == kExactRun) {
      tensors_ = std::move(tensors);
      return;
    }
    add_run(tensors_, folder_of_run(folder_, kExactRun), tensors, own);
    std::error_code ignored;
    fs::remove_all(own, ignored);
    if (run > 0) return;
    RunErrors errors;
    for (const GivenPiece& tensor : tensors_) {
      const GoldenFacts& facts = tensor.facts;
      errors[record_key(facts.phase, facts.step, facts.name)] = facts.scatter;
    }
    write_errors(folder_, errors);
  });
}

world::TaskOutcome ReferenceTensors::write_index(const OwnedFd& fd) const {
  return guarded(fmt::format("the reference ({}): ", reference_name(spec_.reference)), [&] {
    const std::string index = index_of_pieces(folder_of_run(folder_, kExactRun), tensors_);
    if (::write(fd.get(), index.data(), index.size()) != static_cast<ssize_t>(index.size())) {
      throw InternalError("the index of the reference cannot be written");
    }
  });
}

}  // namespace shardproof::sim::run
