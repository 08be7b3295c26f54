#include "sim/uses/logprobs/pair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/read_text.h"
#include "tensor/safetensors_reader.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr const char* kLogprobs = "logprobs";

struct Precision {
  const char* name;
  double epsilon;
};
constexpr std::array<Precision, 4> kPrecisions = {
    {{"float64", 0x1p-52}, {"float32", 0x1p-23}, {"float16", 0x1p-10}, {"bfloat16", 0x1p-7}}};

const Precision* find_precision(const std::string& name) {
  const auto found = std::find_if(kPrecisions.begin(), kPrecisions.end(),
                                  [&](const Precision& dtype) { return name == dtype.name; });
  return found == kPrecisions.end() ? nullptr : &*found;
}

std::string shape_text(const TensorView& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

SafetensorsReader open_file(const std::string& path) {
  if (const std::string why = why_no_file(path); !why.empty()) {
    throw_bad_input(path + " " + why, "name a safetensors file that holds logprobs [B, S]");
  }
  return SafetensorsReader::open(path);
}

// The values of [B, S] as float64.
std::vector<double> read_logprobs(const SafetensorsReader& file) {
  const TensorView& tensor = file.view(kLogprobs);
  if (tensor.dim() != 2 || tensor.numel() == 0) {
    throw_bad_input(fmt::format("{}: logprobs has the shape {}", file.path(), shape_text(tensor)),
                    "write logprobs as [B, S] with at least one token");
  }
  if (find_precision(dtype_name(tensor.dtype())) == nullptr) {
    throw_bad_input(fmt::format("{}: logprobs is {}", file.path(), dtype_name(tensor.dtype())),
                    "write it as float64, float32, bfloat16 or float16");
  }
  return values_as<double>(tensor);
}

// A tensor of integers of either file, which must agree; empty when none has it.
class IntegerTensors {
 public:
  IntegerTensors(const SafetensorsReader& a, const SafetensorsReader& b) : a_(a), b_(b) {}

  std::vector<int64_t> read(const std::string& name, const std::vector<int64_t>& shape) const {
    std::vector<int64_t> from_a = read_one(a_, name, shape), from_b = read_one(b_, name, shape);
    if (from_a.empty()) return from_b;
    if (!from_b.empty()) check_equal(name, from_a, from_b, shape);
    return from_a;
  }

 private:
  static std::vector<int64_t> read_one(const SafetensorsReader& file, const std::string& name,
                                       const std::vector<int64_t>& shape) {
    if (!file.contains(name)) return {};
    const TensorView& tensor = file.view(name);
    if (tensor.sizes() != shape) {
      throw_bad_input(
          fmt::format("{}: {} has the shape {}, and logprobs needs [{}]", file.path(), name,
                      shape_text(tensor), fmt::join(shape, ", ")),
          "write one number for each " + std::string(shape.size() == 1 ? "row" : "token"));
    }
    if (is_floating(tensor.dtype())) {
      throw_bad_input(fmt::format("{}: {} is {}", file.path(), name, dtype_name(tensor.dtype())),
                      "write it as int64, int32 or bool");
    }
    return values_as<int64_t>(tensor);
  }

  void check_equal(const std::string& name, const std::vector<int64_t>& from_a,
                   const std::vector<int64_t>& from_b, const std::vector<int64_t>& shape) const {
    const auto first = std::mismatch(from_a.begin(), from_a.end(), from_b.begin());
    if (first.first == from_a.end()) return;
    const int64_t place = first.first - from_a.begin();
    const std::string where = shape.size() == 1 ? fmt::format("in row {}", place)
                                                : fmt::format("at row {}, position {}",
                                                              place / shape[1], place % shape[1]);
    throw_bad_input(fmt::format("{} of {} is {} {}, and that of {} is {}", name, a_.path(),
                                *first.first, where, b_.path(), *first.second),
                    "compare files of the same batch");
  }

  const SafetensorsReader& a_;
  const SafetensorsReader& b_;
};

// A name that is misspelled would be a file that lacks it.
std::string unread_text(const SafetensorsReader& a, const SafetensorsReader& b) {
  const std::set<std::string> known = {kLogprobs, "input_ids", "lengths",
                                       "mask",    "segments",  "versions"};
  std::vector<std::string> unread;
  for (const auto& [side, file] : {std::pair("A", &a), {"B", &b}}) {
    for (const std::string& name : file->names()) {
      if (known.count(name) == 0) unread.push_back(fmt::format("{} of {}", name, side));
    }
  }
  return fmt::format("{}", fmt::join(unread, ", "));
}

std::optional<double> number_of(const SafetensorsReader& file, const std::string& name, double low,
                                double high) {
  const auto found = file.metadata().find(name);
  if (found == file.metadata().end()) return std::nullopt;
  const std::string& text = found->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || !(value > low && value <= high)) {
    throw_bad_input(fmt::format("{}: metadata {} is '{}'", file.path(), name, text),
                    fmt::format("write a number above {:g} and at most {:g}", low, high));
  }
  return value;
}

Settings read_settings(const SafetensorsReader& file) {
  return {.temperature = number_of(file, "temperature", 0, 1000),
          .top_p = number_of(file, "top_p", 0, 1)};
}

int64_t read_vocab_size(const SafetensorsReader& a, const SafetensorsReader& b) {
  const auto from_a = number_of(a, "vocab_size", 1, 1e9),
             from_b = number_of(b, "vocab_size", 1, 1e9);
  if (from_a && from_b && *from_a != *from_b) {
    throw_bad_input(fmt::format("vocab_size of {} is {:.0f}, and that of {} is {:.0f}", a.path(),
                                *from_a, b.path(), *from_b),
                    "compare files of the same batch and vocabulary");
  }
  const double size = from_a ? *from_a : from_b.value_or(0);
  if (size != std::floor(size)) {
    throw_bad_input(fmt::format("metadata vocab_size is {}", size), "write an integer");
  }
  return static_cast<int64_t>(size);
}

void read_dtype(const SafetensorsReader& file, Pair& pair) {
  const Precision* stored = find_precision(dtype_name(file.view(kLogprobs).dtype()));
  const Precision* coarsest = stored;
  const auto named = file.metadata().find("dtype");
  if (named != file.metadata().end()) {
    const Precision* computed = find_precision(named->second);
    if (computed == nullptr) {
      throw_bad_input(fmt::format("{}: metadata dtype is '{}'", file.path(), named->second),
                      "write float64, float32, bfloat16 or float16");
    }
    if (computed->epsilon > coarsest->epsilon) coarsest = computed;
  }
  pair.stored_epsilon = std::max(pair.stored_epsilon, stored->epsilon);
  if (coarsest->epsilon > pair.epsilon) {
    pair.epsilon = coarsest->epsilon;
    pair.dtype = coarsest->name;
  }
}

void find_counting_tokens(Pair& pair, const IntegerTensors& integers) {
  pair.lengths = integers.read("lengths", {pair.rows});
  const std::vector<int64_t>& lengths = pair.lengths;
  const std::vector<int64_t> mask = integers.read("mask", {pair.rows, pair.length});
  pair.segment = integers.read("segments", {pair.rows, pair.length});
  pair.has_lengths = !lengths.empty() || !mask.empty();
  pair.has_segments = !pair.segment.empty();
  if (!pair.has_segments) pair.segment.assign(pair.a.size(), 0);
  pair.counts.assign(pair.a.size(), 1);
  for (int64_t row = 0; row < pair.rows; ++row) {
    const int64_t length = lengths.empty() ? pair.length : lengths[row];
    if (length < 0 || length > pair.length) {
      throw_bad_input(fmt::format("lengths is {} in row {}, and a row has {} positions", length,
                                  row, pair.length),
                      fmt::format("write lengths from 0 to {}", pair.length));
    }
    for (int64_t i = pair.at(row, 0); i < pair.at(row + 1, 0); ++i) {
      const bool counts = i - pair.at(row, 0) < length && (mask.empty() || mask[i] != 0);
      pair.counts[i] = counts && pair.segment[i] >= 0;
    }
  }
}

void collect_tokens(Pair& pair, const IntegerTensors& integers) {
  pair.ids = integers.read("input_ids", {pair.rows, pair.length});
  const std::vector<int64_t> versions = integers.read("versions", {pair.rows, pair.length});
  pair.has_ids = !pair.ids.empty();
  pair.has_versions = !versions.empty();
  for (int64_t row = 0; row < pair.rows; ++row) {
    int64_t segment = -1, begin = 0;
    for (int64_t position = 0; position < pair.length; ++position) {
      const int64_t i = pair.at(row, position);
      if (position == 0 || pair.segment[i] != pair.segment[i - 1]) {
        begin = position;
        segment += pair.segment[i] >= 0 ? 1 : 0;
      }
      const double a = pair.a[i], b = pair.b[i];
      if (pair.counts[i] == 0 || (a == b && a == 0)) continue;
      if (a == -INFINITY && b == -INFINITY) {
        pair.infinite.push_back(i);
        continue;
      }
      if (!std::isfinite(a) || !std::isfinite(b)) {
        pair.non_finite.push_back(i);
        continue;
      }
      const Token token{.row = row,
                        .position = position,
                        .id = pair.has_ids ? pair.ids[i] : -1,
                        .version = versions.empty() ? -1 : versions[i],
                        .segment = segment,
                        .in_segment = position - begin,
                        .a = a,
                        .b = b};
      pair.max_id = std::max(pair.max_id, token.id);
      pair.tokens.push_back(token);
    }
  }
}

void check_ids(const Pair& pair) {
  for (const Token& token : pair.tokens) {
    const bool below = pair.vocab_size == 0 || token.id < pair.vocab_size;
    if (!pair.has_ids || (token.id >= 0 && below)) continue;
    throw_bad_input(
        fmt::format("the token id at row {}, position {} is {}, and ids are from 0 to {}",
                    token.row, token.position, token.id,
                    pair.vocab_size == 0 ? "vocab_size - 1" : std::to_string(pair.vocab_size - 1)),
        "correct input_ids, vocab_size or the mask");
  }
}

}  // namespace

Pair read_pair(const std::string& path_a, const std::string& path_b) {
  const SafetensorsReader a = open_file(path_a), b = open_file(path_b);
  Pair pair;
  pair.path_a = path_a;
  pair.path_b = path_b;
  pair.a = read_logprobs(a);
  pair.b = read_logprobs(b);
  const TensorView &shape_a = a.view(kLogprobs), &shape_b = b.view(kLogprobs);
  if (shape_a.sizes() != shape_b.sizes()) {
    throw_bad_input(fmt::format("logprobs is {} in {} and {} in {}", shape_text(shape_a), path_a,
                                shape_text(shape_b), path_b),
                    "compare files of the same batch");
  }
  pair.rows = shape_a.size(0);
  pair.length = shape_a.size(1);
  pair.settings_a = read_settings(a);
  pair.settings_b = read_settings(b);
  pair.vocab_size = read_vocab_size(a, b);
  pair.unread = unread_text(a, b);
  read_dtype(a, pair);
  read_dtype(b, pair);
  const IntegerTensors integers(a, b);
  find_counting_tokens(pair, integers);
  collect_tokens(pair, integers);
  if (std::find(pair.counts.begin(), pair.counts.end(), 1) == pair.counts.end()) {
    throw_bad_input(
        fmt::format("none of the {} tokens of {} and {} counts", pair.a.size(), path_a, path_b),
        "correct lengths, mask or segments of the file that has them");
  }
  if (pair.tokens.empty() && pair.non_finite.empty()) {
    const auto counting = std::count(pair.counts.begin(), pair.counts.end(), 1);
    throw_bad_input(
        fmt::format("{} and {} have no scored token to compare: all {} logprobs that count are 0, "
                    "or -infinity, in both",
                    path_a, path_b, counting),
        "write the logprobs of the scored tokens, or correct the mask");
  }
  check_ids(pair);
  pair.routes = read_routes(path_a, path_b, pair.rows, pair.length, pair.counts);
  return pair;
}

}  // namespace shardproof::sim::logprobs
