// Judges a result file from another program by the rules that apply to a rank.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "sim/case/record/expected_names.h"
#include "sim/case/record/golden_record.h"
#include "sim/case/record/magnitude.h"
#include "sim/case/record/sampled_rows.h"
#include "sim/judge/diff/tensor_diff.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/judge/probe/rank_recorder.h"
#include "sim/judge/verdict/replay.h"
#include "sim/judge/verdict/verdict.h"
#include "tensor/safetensors.h"

namespace shardproof::sim::judge {
namespace {

// Maps a name in the file to its golden tensor; parameters count after every step.
std::map<std::string, const GoldenTensor*> known_names(const GoldenRecord& golden, int64_t steps) {
  std::map<std::string, const GoldenTensor*> known;
  for (const GoldenTensor& tensor : golden.tensors()) {
    for (const std::string& name :
         expected_names_of(tensor.kind, tensor.name, tensor.step, steps)) {
      known.emplace(name, &tensor);
    }
    const std::string in_step = fmt::format("step{}.{}", tensor.step, tensor.name);
    if (tensor.kind == ObservationKind::kParameter) known.emplace(in_step, &tensor);
  }
  return known;
}

// The step that an overflow made the golden skip, of a name that the file gives one of its
// gradients or their norm; 0 of any other name.
int64_t skipped_step_of(const std::string& name, const GoldenRecord& golden, int64_t steps) {
  using enum ObservationKind;
  const auto is_of = [&](ObservationKind kind, const std::string& of, int64_t step) {
    const auto names = expected_names_of(kind, observed_name(kind, of), step, steps);
    return std::ranges::find(names, name) != names.end();
  };
  for (const GoldenTensor& skipped : golden.tensors()) {
    if (skipped.kind != kSkipped || *skipped.value.data<double>() == 0) continue;
    if (is_of(kGradNorm, "grad_norm", skipped.step)) return skipped.step;
    for (const GoldenTensor& tensor : golden.tensors()) {
      if (tensor.kind != kParameter) continue;
      if (is_of(kGradient, parameter_of(kParameter, tensor.name), skipped.step))
        return skipped.step;
    }
  }
  return 0;
}

[[noreturn]] void bad_file(const std::string& path, const std::string& what,
                           const std::string& fix) {
  throw_bad_input(path + ": " + what, fix);
}

void check_tensor(const std::string& path, const std::string& name, const TensorView& tensor,
                  const GoldenTensor& golden) {
  const auto shape_text = [](const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
  };
  const bool scalar = golden.value.numel() == 1 && tensor.numel() == 1;
  const std::vector<int64_t> shape = full_shape(golden, golden.value.sizes());
  if (tensor.sizes() != shape && !scalar) {
    bad_file(path,
             fmt::format("{} has the shape {}, the golden's is {}", name,
                         shape_text(tensor.sizes()), shape_text(shape)),
             "write the full tensor, not a shard");
  }
  if (is_floating(tensor.dtype()) != is_floating(golden.value.dtype())) {
    bad_file(path,
             fmt::format("{} is {}, the golden is {}", name, dtype_name(tensor.dtype()),
                         dtype_name(golden.value.dtype())),
             "write floating values as float64");
  }
}

// Counts the golden tensors that the format names, and lists those that the file holds under no
// name.
void count_demanded(const SafetensorsFile& file, const GoldenRecord& golden, int64_t steps,
                    FileJudgement& judgement) {
  for (const GoldenTensor& tensor : golden.tensors()) {
    const auto names = expected_names_of(tensor.kind, tensor.name, tensor.step, steps);
    if (names.empty()) continue;
    ++judgement.demanded;
    const bool held = std::any_of(names.begin(), names.end(),
                                  [&](const std::string& name) { return file.contains(name); });
    if (!held) judgement.lacking.push_back(names.front());
  }
}

// The file is the only rank of a world of one, which observes its tensors in the golden's order.
CaseSpec as_one_rank(CaseSpec spec) {
  spec.parallel = ParallelSpec();
  spec.record_activations = false;
  return spec;
}

// How far a parameter went, of which the golden has no start: since its first step, or what AdamW
// makes of one step; otherwise its largest element, for a state. Unset where nothing says.
std::optional<double> way_of(const CaseSpec& spec, const GoldenRecord& golden,
                             const GoldenTensor& tensor) {
  if (tensor.kind != ObservationKind::kParameter) return tensor.scale;
  const GoldenTensor* first = golden.find(tensor.phase, 1, tensor.name);
  if (first != nullptr && first != &tensor && first->value.sizes() == tensor.value.sizes()) {
    return distance_between(first->value, tensor.value).largest;
  }
  if (spec.optimizer.kind != OptimizerKind::kAdamW) return std::nullopt;
  const GoldenTensor* rate = golden.find(Phase::kStep, tensor.step, "lr");
  return rate != nullptr ? *rate->value.data<double>() : spec.optimizer.lr;
}

// Below float64 a rank's own optimizer judges what it has stepped (own_optimizer.h). Of a file
// nothing is stepped, and roundings alone may be as large as the updates.
void leave_unresolved(const CaseSpec& spec, const GoldenRecord& golden, ResultRow& row) {
  if (spec.precision == Precision::kFloat64 || row.outcome != Outcome::kMatch) return;
  const GoldenTensor* tensor = golden.find(row.phase, row.step, row.name);
  if (tensor == nullptr || !is_stepped(row.kind)) return;
  const std::optional<double> way = way_of(spec, golden, *tensor);
  const double most = way ? *way / 2 : 0, allowed = Tolerance(spec).allowance(*tensor);
  const auto added = FreeRunningAllowance::of(spec, golden, *tensor);
  const int64_t size = tensor->value.numel();
  int64_t wide = 0;
  for (int64_t i = 0; i < size; ++i) wide += allowed + (added ? added->at(i) : 0) > most;
  if (2 * wide <= size) return;
  row.outcome = Outcome::kUnresolved;
  row.judged = 0;
  row.reason =
      way ? fmt::format(
                "rounding in {} may move {} of its {} elements by more than half of the "
                "{:.2g} that it went",
                name_of(spec.precision), wide, size, *way)
          : "how far it went in this step is not known, and rounding may have moved it as far";
}

RankReport compare_file(const SafetensorsFile& file, const CaseSpec& spec,
                        const GoldenRecord& golden) {
  const auto known = known_names(golden, spec.steps);
  std::map<std::pair<int64_t, std::string>, const GoldenTensor*> found;
  for (const std::string& name : file.names()) {
    const auto place = known.find(name);
    if (place == known.end()) {
      std::vector<std::string> names;
      for (const auto& [known_name, tensor] : known) names.push_back(known_name);
      if (const int64_t step = skipped_step_of(name, golden, spec.steps)) {
        bad_file(file.path(),
                 fmt::format("the golden has no '{}': at the loss scale of its first steps float16 "
                             "overflows, and step {} was skipped",
                             name, step),
                 "compare it in another --precision, or leave gradients and grad_norm out of it");
      }
      const std::string near = nearest_name(name, names);
      bad_file(file.path(), "the golden has nothing called '" + name + "'",
               "known are logprobs, loss, grad_norm, grad.<parameter>, step<k>.loss, ..." +
                   (near.empty() ? "" : "; did you mean '" + near + "'?"));
    }
    check_tensor(file.path(), name, file.view(name), *place->second);
    found.emplace(std::make_pair(place->second->order, name), place->second);
  }
  RankRecorder recorder(as_one_rank(spec), Mesh(), 0, &golden, {});
  for (const auto& [place, tensor] : found) {
    recorder.observe(
        {.kind = tensor->kind,
         .name = tensor->name,
         .phase = tensor->phase,
         .step = tensor->step,
         .tensor = file.get(place.second).view(full_shape(*tensor, tensor->value.sizes()))});
  }
  RankReport report = recorder.finish();
  for (ResultRow& row : report.rows) leave_unresolved(spec, golden, row);
  for (Unobserved& missing : report.unobserved) {  // the message gives the names of the file
    if (!missing.excuse) missing.excuse = Excuse::kNotInFile;
  }
  return report;
}

}  // namespace

FileJudgement judge_result_file(const CaseSpec& spec, int golden_fd, const std::string& path) {
  FileJudgement judgement;
  CaseResult& result = judgement.result;
  try {
    const GoldenRecord golden = GoldenRecord::from_fd(golden_fd);
    const SafetensorsFile file = SafetensorsFile::open(path);
    if (file.names().empty()) {
      bad_file(path, "it holds no tensor", "write the names of expected.safetensors");
    }
    CaseSpec one = as_one_rank(spec);
    one.expect.collectives = nullptr;
    result = judge(one, {{.bytes = encode(compare_file(file, spec, golden))}});
    result.spec = spec;
    result.replay = fmt::format("shardproof judge {} {}", shell_word(spec.file), shell_word(path));
    if (spec.precision != Precision::kFloat64)
      result.replay += " --precision " + name_of(spec.precision);
    count_demanded(file, golden, spec.steps, judgement);
  } catch (const Error& error) {
    const bool refused = error.kind() == ErrorKind::kRefused;
    result = judge(spec, {{.kind = refused ? ResultKind::kRefused : ResultKind::kBadInput,
                           .message = error.what()}});
  }
  return judgement;
}

}  // namespace shardproof::sim::judge
