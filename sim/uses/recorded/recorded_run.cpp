#include "sim/uses/recorded/recorded_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/checked.h"
#include "base/count_of.h"
#include "base/error.h"
#include "base/read_text.h"
#include "sim/case/names.h"
#include "sim/uses/recorded/fields.h"
#include "sim/uses/recorded/run_header.h"
#include "tensor/safetensors_reader.h"

namespace shardproof::sim::recorded {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr uintmax_t kMostBytes = uintmax_t{1} << 30;  // of a rank's lines

struct Kind {
  const char* name;
  Phase phase;
  const char* suffix;
  ObservationKind kind;  // kUnknown: the name says it
};
constexpr Kind kKinds[] = {
    {"param", Phase::kStep, "", ObservationKind::kParameter},
    {"grad", Phase::kStep, "", ObservationKind::kGradient},
    {"opt", Phase::kStep, "", ObservationKind::kOtherState},
    {"act", Phase::kForward, kOutputSuffix.data(), ObservationKind::kOutput},
    {"act_grad", Phase::kBackward, ".grad_output", ObservationKind::kInputGradient},
    {"logprobs", Phase::kForward, "", ObservationKind::kUnknown},
    {"scalar", Phase::kForward, "", ObservationKind::kUnknown},
    {"hash", Phase::kForward, kOutputSuffix.data(), ObservationKind::kOutput},
    {"buffer", Phase::kStep, "", ObservationKind::kBuffer},
    {"random", Phase::kStep, "", ObservationKind::kRandomState},
};

// What a line records, by its own word and, where that leaves it open, by the name.
ObservationKind kind_of_line(const Kind& kind, const std::string& name) {
  if (kind.kind == ObservationKind::kOtherState) {
    const ObservationKind known = kind_of_name(Phase::kStep, name);
    return is_optimizer_state(known) ? known : kind.kind;
  }
  if (kind.kind != ObservationKind::kUnknown) return kind.kind;
  const ObservationKind scalar = kind_of_name(Phase::kStep, name);
  return is_step_scalar(scalar) ? scalar : kind_of_name(kind.phase, name);
}

const Kind& kind_of(const Fields& fields) {
  const std::string word = fields.text("kind");
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) {
    if (word == kind.name) return kind;
    names.emplace_back(kind.name);
  }
  fields.fail("kind", fmt::format("is '{}'; known are {}", word, fmt::join(names, ", ")));
}

// Throws unless it is a file of at most kMostBytes: a pipe would block.
void require_file(const std::string& path) {
  std::error_code ignored;
  if (const std::string why = why_no_file(path); !why.empty()) {
    throw_bad_input(path + " " + why, "the run was not closed, or a rank died; record it again");
  }
  if (fs::file_size(path, ignored) > kMostBytes) {
    throw_bad_input(fmt::format("{} has more than {} bytes", path, kMostBytes),
                    "record fewer steps, or fewer parameters (only=)");
  }
}

void check_box(const Fields& fields, const RecordedPiece& piece) {
  if (piece.place.offset.size() != piece.global_shape.size() ||
      piece.shape.size() != piece.global_shape.size()) {
    fields.fail("offset",
                fmt::format("has {} numbers, shape {}, global_shape {}", piece.place.offset.size(),
                            piece.shape.size(), piece.global_shape.size()));
  }
  for (size_t d = 0; d < piece.shape.size(); ++d) {
    const int64_t end = piece.place.offset[d] + piece.shape[d];
    if (piece.place.offset[d] < 0 || end > piece.global_shape[d]) {
      fields.fail("offset",
                  fmt::format("makes the box [{}, {}) in dim {} of [{}]", piece.place.offset[d],
                              end, d, fmt::join(piece.global_shape, ", ")));
    }
  }
}

int64_t size_of(const Fields& fields, const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (const int64_t length : shape) {
    const auto product = checked_multiply(size, length);
    if (!product) fields.fail("shape", fmt::format("[{}] is too large", fmt::join(shape, ", ")));
    size = *product;
  }
  return size;
}

void read_place(const Fields& fields, RecordedPiece& piece) {
  if (fields.has("flat")) {
    const std::vector<int64_t> range = fields.counts("flat");
    const int64_t size = size_of(fields, piece.global_shape);
    const bool fits = range.size() == 2 && range[0] <= range[1] && range[1] <= size &&
                      size_of(fields, piece.shape) == range[1] - range[0];
    if (!fits) {
      fields.fail("flat", fmt::format("is [{}] for a piece of [{}] in a tensor of {} elements",
                                      fmt::join(range, ", "), fmt::join(piece.shape, ", "), size));
    }
    piece.place = {.kind = Place::Kind::kFlat, .begin = range[0], .end = range[1]};
  } else if (fields.has("offset")) {
    piece.place = {.kind = Place::Kind::kBox, .offset = fields.counts("offset")};
    check_box(fields, piece);
  } else if (piece.global_shape != piece.shape) {
    fields.fail("offset", "is missing, and shape and global_shape differ");
  }
}

void read_partial(const Fields& fields, const Mesh& mesh, RecordedPiece& piece) {
  if (!fields.has("partial")) return;
  const Fields partial = fields.object("partial");
  partial.expect_only({"axes", "op"});
  const std::vector<std::string> axes = partial.texts("axes");
  if (axes.empty()) partial.fail("axes", "is empty; leave out \"partial\" where nothing is summed");
  if (std::set<std::string>(axes.begin(), axes.end()).size() != axes.size()) {
    partial.fail("axes", fmt::format("is [{}], and an axis is summed once", fmt::join(axes, ", ")));
  }
  for (const std::string& axis : axes) {
    const bool known = std::any_of(mesh.axes().begin(), mesh.axes().end(),
                                   [&](const MeshAxis& one) { return one.name == axis; });
    if (known) piece.partial_axes.push_back(axis);  // else it has one rank, and there is no sum
    if (known || mesh.world_size() == 1) continue;
    partial.fail("axes",
                 fmt::format("has '{}', and the axes of the mesh are {}", axis, mesh.describe()));
  }
  const std::string op = partial.text("op");
  if (op != "sum" && op != "mean") partial.fail("op", "is '" + op + "'; it is sum or mean");
  piece.is_mean = op == "mean";
}

void read_values(const Fields& fields, const SafetensorsReader& file, RecordedPiece& piece) {
  const std::string key = fields.text("key");
  if (!file.contains(key)) fields.fail("key", fmt::format("{} is not in {}", key, file.path()));
  piece.values = file.view(key);
  if (piece.values.sizes() != piece.shape) {
    fields.fail("shape",
                fmt::format("is [{}], and the tensor of {} is [{}]", fmt::join(piece.shape, ", "),
                            file.path(), fmt::join(piece.values.sizes(), ", ")));
  }
  const std::string dtype = dtype_name(piece.values.dtype());
  if (fields.text("dtype") != dtype) {
    fields.fail("dtype", fmt::format("is {}, and the tensor of {} is {}", fields.text("dtype"),
                                     file.path(), dtype));
  }
}

constexpr const char* kHash = "hash";
constexpr const char* kRandom = "random";

// All but its values.
RecordedPiece described_piece(const Fields& fields, const RecordedRun& run) {
  const Kind& kind = kind_of(fields);
  RecordedPiece piece;
  piece.kind = kind_of_line(kind, fields.text("name"));
  piece.name = observed_name(kind.kind, fields.text("name")) + kind.suffix;
  piece.phase = kind.phase;
  if (std::string(kind.name) == "scalar" && is_step_scalar(piece.kind)) piece.phase = Phase::kStep;
  piece.step = fields.count("step", 0, kMaxSteps);
  if (fields.has("microbatch")) piece.microbatch = fields.count("microbatch", 0, kMaxSteps);
  if (fields.has("order")) piece.order = fields.count("order", 0, int64_t{1} << 40);
  piece.shape = fields.counts("shape");
  piece.global_shape = fields.has("global_shape") ? fields.counts("global_shape") : piece.shape;
  size_of(fields, piece.global_shape);
  read_place(fields, piece);
  piece.is_concluded = fields.has("source") && fields.text("source") == "rows";
  read_partial(fields, run.mesh, piece);
  return piece;
}

RecordedHash hash_of(const Fields& fields, const RecordedRun& run) {
  RecordedHash hash{.piece = described_piece(fields, run)};
  if (fields.has("rows")) hash.rows = fields.count("rows", 0, int64_t{1} << 48);
  const std::string digits = fields.text("digest");
  if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != digits.npos) {
    fields.fail("digest", "is '" + digits + "'; it has 16 hexadecimal digits");
  }
  hash.digest = std::stoull(digits, nullptr, 16);
  fields.expect_only({"kind", "name", "step", "microbatch", "order", "dtype", "shape",
                      "global_shape", "offset", "flat", "partial", "rows", "digest", "source"});
  return hash;
}

// The last line of a rank: all pieces and all tensors were written.
void check_end(const Fields& fields, int64_t lines, int64_t hashes,
               const std::set<std::string>& keys, const SafetensorsReader& file) {
  fields.expect_only({"end"});
  const int64_t pieces = fields.count("end", 0, int64_t{1} << 40);
  if (pieces != lines) {
    fields.fail("end", fmt::format("says {} pieces, and {} came before it", pieces, lines));
  }
  if (std::ssize(keys) != lines - hashes || keys.size() != file.names().size()) {
    fields.fail("end", fmt::format("{} lines name {} tensors, and {} has {}", lines - hashes,
                                   keys.size(), file.path(), file.names().size()));
  }
}

void read_rank(int64_t rank, RecordedRun& run) {
  const std::string base = (fs::path(run.folder) / fmt::format("rank{}", rank)).string();
  const std::string path = base + ".jsonl";
  require_file(path);
  const SafetensorsReader file = SafetensorsReader::open(base + ".safetensors");
  std::ifstream lines(path, std::ios::binary);
  std::string line;
  int64_t number = 0, hashes = 0;
  bool ended = false;
  std::set<std::string> keys;
  while (std::getline(lines, line)) {
    const std::string where = fmt::format("{}:{}", path, ++number);
    const Fields fields(where, parse_json_object(path, line, number));
    if (ended) fields.fail("", "follows the last line");
    if (fields.has("end")) {
      check_end(fields, number - 1, hashes, keys, file);
      ended = true;
      continue;
    }
    const std::string kind = fields.text("kind");
    if (kind == kHash || kind == kRandom) {
      auto& of_kind = kind == kHash ? run.hashes : run.random_states;
      of_kind.push_back(hash_of(fields, run));
      of_kind.back().piece.rank = rank;
      ++hashes;
      continue;
    }
    fields.expect_only({"key", "kind", "name", "step", "microbatch", "order", "dtype", "shape",
                        "global_shape", "offset", "flat", "partial", "source"});
    RecordedPiece piece = described_piece(fields, run);
    read_values(fields, file, piece);
    keys.insert(fields.text("key"));
    piece.line = number;
    piece.rank = rank;
    if (piece.values.numel() > 0) run.pieces.push_back(std::move(piece));
  }
  if (ended && number > 1) return;
  throw_bad_input(ended ? path + " has no piece"
                        : fmt::format("{} ends after {} lines without its last line", path, number),
                  "the rank died while it wrote, or recorded nothing; record the run again");
}

}  // namespace

bool is_step_scalar(ObservationKind kind) {
  using enum ObservationKind;
  return kind == kGradNorm || kind == kClipFactor || kind == kRate;
}

bool is_optional_state(ObservationKind kind) {
  return kind == ObservationKind::kBuffer || kind == ObservationKind::kStepCount;
}

bool is_optimizer_state(ObservationKind kind) {
  return is_moment(kind) || kind == ObservationKind::kOtherState ||
         kind == ObservationKind::kStepCount;
}

int64_t place_in_phase(Phase phase, ObservationKind kind, bool is_scalar) {
  if (phase == Phase::kForward) return is_scalar ? 1 : 0;
  if (phase != Phase::kStep || kind == ObservationKind::kGradient) return 0;
  if (is_step_scalar(kind)) return 1;
  if (is_optimizer_state(kind)) return kind == ObservationKind::kStepCount ? 2 : 3;
  return kind == ObservationKind::kParameter ? 4 : 5;
}

bool is_recorded_run(const std::string& folder) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(folder) / "run.json", ignored);
}

namespace {

constexpr int64_t kVersion = 3;  // the newest that this program reads; it reads all before

RecordedRun read_run(const std::string& folder) {
  const std::string path = (fs::path(folder) / "run.json").string();
  require_file(path);
  const Fields fields(path, read_json_object(path));
  if (fields.text("format") != "shardproof-run") {
    fields.fail("format", "is '" + fields.text("format") + "'; a recorded run has shardproof-run");
  }
  const int64_t version = fields.count("version", 1, 1 << 20);
  if (version > kVersion) {
    fields.fail("version",
                fmt::format("is {}; this program reads versions 1 to {}", version, kVersion));
  }
  RecordedRun run;
  run.folder = folder;
  read_header(fields, run);
  for (int64_t rank = 0; rank < run.world_size; ++rank) read_rank(rank, run);
  const std::string next = fmt::format("rank{}.jsonl", run.world_size);
  if (fs::exists(fs::path(run.folder) / next)) {
    throw_bad_input(fmt::format("{} holds {}, and its run.json says {}", run.folder, next,
                                count_of(run.world_size, "rank")),
                    "these are files of two runs: record the run again, into an empty folder");
  }
  std::set<int64_t> steps;
  for (const RecordedPiece& piece : run.pieces) steps.insert(piece.step);
  for (const RecordedHash& hash : run.hashes) steps.insert(hash.piece.step);
  for (int64_t step = 1; step <= run.steps; ++step) {
    if (steps.contains(step)) continue;
    fields.fail("steps",
                fmt::format("is {}, and no rank recorded a tensor of step {}", run.steps, step));
  }
  return run;
}

// The numbers k of the folders noise<k>.
std::set<int64_t> numbers_of_repeats(const std::string& folder) {
  std::set<int64_t> numbers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    for (int64_t k = 1; name.starts_with("noise") && k <= kMostRepeats; ++k) {
      if (name == fmt::format("noise{}", k)) numbers.insert(k);
    }
  }
  return numbers;
}

}  // namespace

RecordedRun read_recorded_run(const std::string& folder) {
  RecordedRun run = read_run(folder);
  for (const int64_t k : numbers_of_repeats(folder)) {
    run.repeats.push_back(read_run((fs::path(folder) / fmt::format("noise{}", k)).string()));
  }
  return run;
}

}  // namespace shardproof::sim::recorded
