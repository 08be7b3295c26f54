// Writes pieces, which have doubles and the index of each position, to a file.
#include <fmt/format.h>

#include <cstring>

#include "sim/report/escape.h"
#include "sim/report/results_json.h"
#include "sim/report/run_folder.h"
#include "tensor/safetensors_header.h"

namespace shardproof::sim::report {
namespace {

std::vector<int64_t> shape_of(const judge::Piece& piece) {
  std::vector<int64_t> shape;
  for (const auto& dim : piece.dims) shape.push_back(static_cast<int64_t>(dim.size()));
  return shape;
}

// The index in the full tensor of an index along the first of the piece's dims.
int64_t in_full(const judge::Piece& piece, int64_t index) {
  if (piece.drawn.empty() || index < 0) return index;
  const bool tokens = piece.dims.size() < piece.global_shape.size();
  const int64_t of_row = tokens ? piece.global_shape[1] : 1;
  return piece.drawn[static_cast<size_t>(index / of_row)] * of_row + index % of_row;
}

// Flat golden index of every position, in row-major order of the piece's dims.
std::vector<int64_t> flat_indices(const judge::Piece& piece) {
  std::vector<int64_t> flat = {0};
  for (size_t d = 0; d < piece.dims.size(); ++d) {
    std::vector<int64_t> next;
    next.reserve(flat.size() * piece.dims[d].size());
    for (const int64_t base : flat) {
      for (const int64_t here : piece.dims[d]) {
        const int64_t index = d == 0 ? in_full(piece, here) : here;
        next.push_back(base < 0 || index < 0 ? -1 : base + index * piece.strides[d]);
      }
    }
    flat = std::move(next);
  }
  return flat;
}

bool is_whole(const judge::Piece& piece) {
  size_t count = 1;
  for (const auto& dim : piece.dims) count *= dim.size();
  return piece.actual.size() == count && piece.golden.size() == count &&
         piece.strides.size() == piece.dims.size();
}

class FileBytes {
 public:
  template <class Value>
  void add(const std::string& name, const char* dtype, const std::vector<int64_t>& shape,
           const std::vector<Value>& values) {
    const auto begin = static_cast<int64_t>(data_.size());
    data_.resize(data_.size() + values.size() * sizeof(Value));
    if (!values.empty()) {
      std::memcpy(data_.data() + begin, values.data(), values.size() * sizeof(Value));
    }
    entries_.push_back({name, dtype, shape, begin, static_cast<int64_t>(data_.size())});
  }
  std::string bytes(const std::map<std::string, std::string>& metadata) const {
    return safetensors_header_bytes(entries_, metadata) + data_;
  }
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<SafetensorsEntry> entries_;
  std::string data_;
};

std::string piece_name(const judge::Piece& piece) {
  std::string name = fmt::format("rank{}/{}", piece.rank, piece.name);
  if (piece.step > 1) name += fmt::format("@{}", piece.step);
  if (piece.microbatch > 0) name += fmt::format("#{}", piece.microbatch);
  return valid_utf8(name);
}

}  // namespace

bool has_failing_tensors(const judge::CaseResult& result) {
  if (result.verdict != Verdict::kMismatch) return false;
  for (const auto& report : result.reports) {
    for (const auto& piece : report.pieces) {
      if (is_whole(piece)) return true;
    }
  }
  return false;
}

std::string failing_tensors_file(const judge::CaseResult& result) {
  if (!has_failing_tensors(result)) return "";
  FileBytes file;
  std::map<std::string, std::string> metadata = {{"case", valid_utf8(result.spec.name)}};
  for (const auto& report : result.reports) {
    for (const auto& piece : report.pieces) {
      const std::string name = piece_name(piece);
      if (!is_whole(piece) || metadata.count(name) != 0) continue;
      metadata[name] = fmt::format("{} step {} microbatch {}", phase_name(piece.phase), piece.step,
                                   piece.microbatch);
      const auto shape = shape_of(piece);
      file.add(name + "/golden", "F64", shape, piece.golden);
      file.add(name + "/actual", "F64", shape, piece.actual);
      file.add(name + "/index", "I64", shape, flat_indices(piece));
    }
  }
  return file.bytes(metadata);
}

}  // namespace shardproof::sim::report
