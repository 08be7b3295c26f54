#include "sim/uses/recorded/answer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/count_of.h"
#include "base/error.h"
#include "base/utf8.h"
#include "sim/case/record/expected_names.h"
#include "sim/case/record/golden_record.h"
#include "tensor/safetensors_reader.h"

namespace shardproof::sim::recorded {
namespace {

[[noreturn]] void bad_answers(const std::string& path, const std::string& what,
                              const std::string& fix) {
  throw_bad_input(path + ": " + what, fix);
}

bool is_number_of_step(ObservationKind kind) {
  return kind == ObservationKind::kLoss || kind == ObservationKind::kGradNorm;
}

// An observed name and its step.
struct Answer {
  ObservationKind kind;
  std::string observed;
  int64_t step = 1;
};

// Splits "step2.grad_norm"; nothing for a name that the format does not have.
std::optional<Answer> answer_of(const std::string& name) {
  using enum ObservationKind;
  const ObservationKind first = kind_of_name(Phase::kStep, name);
  const bool numbered = first == kGradNorm && name != "grad_norm";
  const bool is_first = first == kLogprobs || first == kGradient || is_number_of_step(first);
  if (is_first && !numbered) return Answer{first, name};
  const size_t dot = name.find('.');
  if (!name.starts_with("step") || dot == name.npos) return std::nullopt;
  const std::string digits = name.substr(4, dot - 4), observed = name.substr(dot + 1);
  const bool counts = !digits.empty() && digits.size() <= 9 && digits.front() != '0' &&
                      digits.find_first_not_of("0123456789") == digits.npos;
  const ObservationKind kind = kind_of_name(Phase::kStep, observed);
  const bool is_known = is_number_of_step(kind) || kind == kParameter;
  if (!counts || !is_known || (kind == kGradNorm && observed != "grad_norm")) return std::nullopt;
  return Answer{kind, observed, std::stoll(digits)};
}

RecordedPiece piece_of(const Answer& answer, const TensorView& values) {
  const bool of_forward =
      answer.kind == ObservationKind::kLogprobs || answer.kind == ObservationKind::kLoss;
  RecordedPiece piece;
  piece.kind = answer.kind;
  piece.name = answer.observed;
  piece.phase = of_forward ? Phase::kForward : Phase::kStep;
  piece.step = answer.step;
  piece.values = values;
  if (is_number_of_step(answer.kind) && values.numel() == 1) {  // may be written as [1]
    piece.values = TensorView(values.owner(), values.dtype(), {});
  }
  piece.shape = piece.global_shape = piece.values.sizes();
  piece.place = {.kind = Place::Kind::kBox, .offset = std::vector<int64_t>(piece.shape.size(), 0)};
  return piece;
}

std::string key_of(const RecordedPiece& piece) {
  return record_key(piece.phase, piece.step, piece.name);
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
         std::memcmp(a.bytes(), b.bytes(), a.nbytes()) == 0;
}

// The name in a file.
std::string file_name(const RecordedPiece& piece, int64_t steps) {
  const auto names = expected_names_of(piece.kind, piece.name, piece.step, steps);
  return names.empty() ? fmt::format("step{}.{}", piece.step, piece.name) : names.front();
}

}  // namespace

RecordedRun read_answers(const std::string& path, const CaseSpec& spec) {
  const SafetensorsReader file = SafetensorsReader::open(path);
  RecordedRun run;
  run.folder = path;
  run.steps = spec.steps;
  run.optimizer = spec.optimizer;
  run.knows_optimizer = true;
  run.is_file = true;
  std::map<std::string, std::pair<std::string, size_t>> taken;  // name and piece, by key
  for (const std::string& name : file.names()) {
    const std::optional<Answer> answer = answer_of(name);
    if (!answer || !is_printable(name)) {
      bad_answers(path, "'" + printable(name, 120) + "' is not a name of an answer",
                  "known are logprobs, loss, grad_norm, grad.<parameter>, step<k>.loss, "
                  "step<k>.grad_norm and step<k>.param.<parameter>");
    }
    if (answer->step > std::max<int64_t>(spec.steps, 1)) {
      bad_answers(path,
                  fmt::format("'{}', and the case has {}", name, count_of(spec.steps, "step")),
                  "leave it out, or correct case.json");
    }
    RecordedPiece piece = piece_of(*answer, file.view(name));
    const auto [known, added] = taken.emplace(key_of(piece), std::pair(name, run.pieces.size()));
    if (added) {
      run.pieces.push_back(std::move(piece));
    } else if (!same_bytes(run.pieces[known->second.second].values, piece.values)) {
      bad_answers(path,
                  fmt::format("{} and {} are one number, and differ", known->second.first, name),
                  "write the right one");
    }
  }
  if (run.pieces.empty()) {
    bad_answers(path, "it holds no tensor", "write the names of expected.safetensors");
  }
  return run;
}

void require_known_answers(const RecordedRun& answers, const RecordedRun& reference) {
  std::set<std::string> known;
  std::vector<std::string> names;
  for (const RecordedPiece& piece : reference.pieces) {
    known.insert(key_of(piece));
    names.push_back(file_name(piece, reference.steps));
  }
  for (const RecordedPiece& piece : answers.pieces) {
    if (known.contains(key_of(piece))) continue;
    const std::string name = file_name(piece, answers.steps), near = nearest_name(name, names);
    bad_answers(answers.folder, fmt::format("{} has nothing called '{}'", reference.folder, name),
                near.empty() ? "leave it out" : "did you mean '" + near + "'?");
  }
}

std::vector<std::string> lacking_answers(const RecordedRun& answers, const RecordedRun& reference) {
  std::set<std::string> held;
  for (const RecordedPiece& piece : answers.pieces) held.insert(key_of(piece));
  std::vector<std::string> lacking;
  for (const RecordedPiece& piece : reference.pieces) {
    if (!held.contains(key_of(piece))) lacking.push_back(file_name(piece, reference.steps));
  }
  return lacking;
}

}  // namespace shardproof::sim::recorded
