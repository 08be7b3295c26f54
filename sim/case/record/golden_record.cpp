#include "sim/case/record/golden_record.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

#include "base/error.h"
#include "sim/case/record/golden_blob.h"
#include "sim/case/record/magnitude.h"
#include "sim/case/record/reference_pieces.h"

namespace shardproof::sim {
namespace {

[[noreturn]] void golden_fault(const GoldenFacts& tensor, const char* what) {
  throw_bad_input(
      fmt::format("a fault of the golden: {} of step {} {}", tensor.name, tensor.step, what),
      "check the weights, the batch and the learning rate: the single-device run "
      "itself is not finite");
}

// Whether a case is meaningless unless the tensor is finite.
bool must_be_finite(const GoldenFacts& tensor) {
  return tensor.phase == Phase::kStep || tensor.kind == ObservationKind::kLoss ||
         tensor.kind == ObservationKind::kLogprobs;
}

bool is_gradient(const GoldenFacts& tensor) {
  using enum ObservationKind;
  return tensor.phase == Phase::kBackward || tensor.kind == kGradient || tensor.kind == kGradNorm;
}

// Scalars leave no roundings in tensors: none is computed from them.
bool is_scalar(ObservationKind kind) {
  using enum ObservationKind;
  return is_metric(kind) || kind == kLoss || kind == kGradNorm || kind == kClipFactor ||
         kind == kRate || kind == kStepCount;
}

// Of the tensors that a kind stands beside: a moment beside its own, as it may be far larger (the
// square of a gradient) or smaller than any parameter; all others together.
ObservationKind beside(const GoldenFacts& tensor) {
  if (is_gradient(tensor)) return ObservationKind::kGradient;
  const bool is_moment = is_stepped(tensor.kind) && tensor.kind != ObservationKind::kParameter;
  return is_moment ? tensor.kind : ObservationKind::kOutput;
}

// A mapped file, unmapped when the last view of it is destroyed.
class Mapping {
 public:
  explicit Mapping(int fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0 || info.st_size <= 0) fail("the descriptor holds nothing");
    size_ = static_cast<size_t>(info.st_size);
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data_ == MAP_FAILED) fail(std::strerror(errno));
  }
  ~Mapping() { ::munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const char* data() const { return static_cast<const char*>(data_); }
  size_t size() const { return size_; }

 private:
  [[noreturn]] static void fail(const std::string& why) {
    throw_bad_input("cannot map the golden record: " + why, "make it again (--no-cache)");
  }
  void* data_ = nullptr;
  size_t size_ = 0;
};

TensorView mapped_tensor(const std::shared_ptr<const Mapping>& mapping, uint64_t data_start,
                         int64_t offset, int8_t dtype, const std::vector<int64_t>& shape) {
  if (!is_dtype(dtype)) {
    throw_bad_input(fmt::format("not a golden record: there is no dtype {}", dtype),
                    "make it again (--no-cache)");
  }
  const auto type = static_cast<Dtype>(dtype);
  auto bytes = static_cast<uint64_t>(element_bytes(type));
  for (const int64_t size : shape) {
    if (size < 0 || (size > 0 && bytes > mapping->size() / static_cast<uint64_t>(size))) {
      bytes = mapping->size() + 1;
      break;
    }
    bytes *= static_cast<uint64_t>(size);
  }
  if (offset < 0 || data_start > mapping->size() || bytes > mapping->size() - data_start ||
      static_cast<uint64_t>(offset) > mapping->size() - data_start - bytes) {
    throw_bad_input("not a golden record: a tensor lies outside the file",
                    "make it again (--no-cache)");
  }
  const char* data = mapping->data() + data_start + offset;
  return {std::shared_ptr<const void>(mapping, data), type, shape};
}

}  // namespace

std::string record_key(Phase phase, int64_t step, const std::string& name) {
  std::string key = phase_name(phase);
  key += ' ';
  key += std::to_string(step);
  key += ' ';
  key += name;
  return key;
}

double largest_beside(const Sizes& sizes, double scale) {
  constexpr double kApart = 1e7;
  constexpr double kRest = 640 * std::numeric_limits<double>::epsilon();
  double largest = sizes.empty() ? 0 : *sizes.begin(), before = largest;
  const auto step_down = [&](double size) {
    if (size * kApart < before && size > kRest * largest) largest = size;
    before = size;
  };
  for (const double size : sizes) {
    if (size <= scale) break;
    step_down(size);
  }
  step_down(scale);
  return largest;
}

double beside_gradient(double beside, double largest_gradient) {
  constexpr double kMostOfGradients = 1e7;  // a gradient may be the small rest of p - 1
  constexpr double kRoundings = 128 * std::numeric_limits<double>::epsilon();
  if (!(largest_gradient > kRoundings * beside)) return beside;
  return std::min(beside, kMostOfGradients * largest_gradient);
}

double GoldenScales::add(const GoldenFacts& facts, const TensorView& value) {
  GoldenFacts known = facts;
  known.scale = largest_magnitude(value);
  add(known, !must_be_finite(facts) || all_finite(value));
  return known.scale;
}

void GoldenScales::add(const GoldenFacts& facts, bool finite) {
  if (must_be_finite(facts) && !finite) golden_fault(facts, "is not finite");
  if (is_scalar(facts.kind)) return;
  using enum ObservationKind;
  const auto put = [&](ObservationKind group, double scale) {
    sizes_[{facts.phase, facts.step, group}].insert(scale);
  };
  // The neighbors of a huge tensor stay judged, but gradients are computed from each other.
  const bool counts = facts.scale <= kLargestCounted;
  const ObservationKind own = beside(facts);
  if (own != kGradient) {
    if (counts) put(own, facts.scale);
    if (counts && own == kOutput) put(kGradient, facts.scale);
    return;
  }
  put(kGradient, facts.scale);
  if (counts) {
    for (const ObservationKind made : {kOutput, kExpAvg, kMomentumBuffer, kOtherState}) {
      put(made, facts.scale);
    }
    put(kExpAvgSq, facts.scale * facts.scale);
  }
  double& largest = largest_gradients_[{facts.phase, facts.step}];
  largest = std::max(largest, facts.scale);
}

double GoldenScales::of_phase(const GoldenFacts& facts) const {
  using enum ObservationKind;
  const ObservationKind group = beside(facts);
  const auto found = sizes_.find({facts.phase, facts.step, group});
  double size = 0;
  if (found != sizes_.end()) {
    // Squares lie further apart than what they are squares of.
    const bool has_gaps = group == kGradient || group == kOutput;
    size = has_gaps ? largest_beside(found->second, facts.scale) : *found->second.begin();
  }
  const auto gradient = largest_gradients_.find({facts.phase, facts.step});
  return group == kGradient && gradient != largest_gradients_.end()
             ? beside_gradient(size, gradient->second)
             : size;
}

void put_tensor(IndexWriter& index, const GoldenFacts& facts, Dtype dtype, int64_t offset,
                const std::vector<int64_t>& shape) {
  index.put(static_cast<int8_t>(facts.phase));
  index.put(facts.step);
  index.put(facts.kind);
  index.put_text(facts.name);
  index.put(static_cast<int8_t>(facts.token_dims));
  index.put(facts.scale);
  index.put(facts.phase_scale);
  index.put(facts.scatter);
  index.put(facts.factor_scatter);
  index.put(facts.square);
  index.put(facts.few_scatter);
  index.put(facts.few_factor_scatter);
  for (const auto* squares : {&facts.square_scatters, &facts.few_square_scatters}) {
    index.put(static_cast<uint32_t>(squares->size()));
    for (const double one : *squares) index.put(one);
  }
  index.put(static_cast<int8_t>(facts.kept_in_float32));
  index.put(static_cast<int8_t>(dtype));
  index.put(offset);
  index.put_list(shape);
  index.put_list(facts.rows);
  index.put(facts.all_rows);
}

GoldenRecord GoldenRecord::from_fd(int fd) {
  const auto mapping = std::make_shared<const Mapping>(fd);
  const std::string_view bytes(mapping->data(), mapping->size());
  IndexReader index(golden_index(bytes));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapping->data(), sizeof(header_bytes));
  const uint64_t data_start = header_bytes > mapping->size() ? mapping->size() : 8 + header_bytes;

  struct Stored {
    GoldenTensor tensor;
    int8_t dtype;
    int64_t offset;
    std::vector<int64_t> shape;
  };
  std::vector<Stored> stored;
  GoldenRecord record;
  const auto count = index.take<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) {
    GoldenTensor tensor;
    tensor.order = i;
    tensor.phase = static_cast<Phase>(index.take<int8_t>());
    tensor.step = index.take<int64_t>();
    tensor.kind = index.take<ObservationKind>();
    tensor.name = index.take_text();
    tensor.token_dims = index.take<int8_t>() != 0;
    tensor.scale = index.take<double>();
    tensor.phase_scale = index.take<double>();
    tensor.scatter = index.take<double>();
    tensor.factor_scatter = index.take<double>();
    tensor.square = index.take<double>();
    tensor.few_scatter = index.take<double>();
    tensor.few_factor_scatter = index.take<double>();
    for (auto* squares : {&tensor.square_scatters, &tensor.few_square_scatters}) {
      const auto rows = index.take<uint32_t>();
      for (uint32_t row = 0; row < rows; ++row) squares->push_back(index.take<double>());
    }
    tensor.kept_in_float32 = index.take<int8_t>() != 0;
    const auto dtype = index.take<int8_t>();
    const auto offset = index.take<int64_t>();
    std::vector<int64_t> shape = index.take_list();
    tensor.rows = index.take_list();
    tensor.all_rows = index.take<int64_t>();
    stored.push_back({std::move(tensor), dtype, offset, std::move(shape)});
  }
  const auto metadata_count = index.take<uint32_t>();
  for (uint32_t i = 0; i < metadata_count; ++i) {
    std::string key = index.take_text();
    record.metadata_[std::move(key)] = index.take_text();
  }
  const auto folder = record.metadata_.find(kPiecesFolder);
  for (Stored& one : stored) {
    if (folder == record.metadata_.end()) {
      one.tensor.value = mapped_tensor(mapping, data_start, one.offset, one.dtype, one.shape);
    } else {
      const PiecesFile file = PiecesFile::to_read(folder->second, one.tensor, one.shape);
      const bool integers = one.dtype == static_cast<int8_t>(Dtype::kInt64);
      one.tensor.value = integers ? file.integers() : file.value();
      one.tensor.given = file.given();
    }
    record.add(std::move(one.tensor));
  }
  return record;
}

GoldenRecord GoldenRecord::of(std::vector<GoldenTensor> tensors) {
  GoldenScales scales;
  for (GoldenTensor& tensor : tensors) tensor.scale = scales.add(tensor, tensor.value);
  GoldenRecord record;
  for (GoldenTensor& tensor : tensors) {
    tensor.order = std::ssize(record.tensors_);
    tensor.phase_scale = scales.of_phase(tensor);
    record.add(std::move(tensor));
  }
  return record;
}

void GoldenRecord::add(GoldenTensor tensor) {
  const std::string key = record_key(tensor.phase, tensor.step, tensor.name);
  SHARDPROOF_ASSERT(by_key_.emplace(key, tensors_.size()).second,
                    "a golden record holds '" + key + "' twice");
  tensors_.push_back(std::move(tensor));
}

const GoldenTensor* GoldenRecord::find(Phase phase, int64_t step, const std::string& name) const {
  const auto found = by_key_.find(record_key(phase, step, name));
  return found == by_key_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace shardproof::sim
