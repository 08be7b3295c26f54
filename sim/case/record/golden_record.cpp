#include "sim/case/record/golden_record.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/error.h"
#include "sim/case/record/expected_names.h"
#include "sim/case/record/golden_blob.h"
#include "sim/case/record/magnitude.h"

namespace shardproof::sim {
namespace {

// Metrics (counts of tokens and the like) do not show the size of gradients and parameters.
bool is_metric(const GoldenTensor& tensor) { return tensor.name.starts_with("metric."); }

[[noreturn]] void golden_fault(const GoldenTensor& tensor, const char* what) {
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("a fault of the golden: {} of step {} {}", tensor.name,
                                   tensor.step, what),
               .fix = "check the weights, the batch and the learning rate: the single-device run "
                      "itself is not finite"});
}

// Whether a case is meaningless unless the tensor is finite.
bool must_be_finite(const GoldenTensor& tensor) {
  return tensor.phase == Phase::kStep || tensor.name == "loss" || tensor.name == "logprobs";
}

// Whether later code writes to the tensor in place; gradients are clipped in place.
bool is_written_after(const Observation& observation, int64_t last_step) {
  if (observation.phase != Phase::kStep) return false;
  return observation.step != last_step || observation.name.starts_with("grad.");
}

// The tensor that the golden keeps: detached, on the CPU, contiguous. Tensors that later code
// writes in place (parameters, gradients, optimizer state) are copied; activations are not.
at::Tensor kept_value(const Observation& observation, int64_t last_step) {
  const at::Tensor value = observation.tensor.detach().cpu();
  if (is_written_after(observation, last_step) &&
      value.data_ptr() == observation.tensor.data_ptr()) {
    return value.clone(at::MemoryFormat::Contiguous);
  }
  return value.contiguous();
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

// float64 for every floating dtype, so that the judge needs only one; integers stay.
at::Tensor judged_value(const at::Tensor& value) {
  return at::isFloatingType(value.scalar_type()) ? value.to(at::kDouble) : value;
}

// A mapped file, unmapped when the last tensor over it is destroyed.
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
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = "cannot map the golden record: " + why,
                 .fix = "make it again (--no-cache)"});
  }
  void* data_ = nullptr;
  size_t size_ = 0;
};

void put_entry(IndexWriter& index, const GoldenTensor& tensor, const at::Tensor& value,
               int64_t offset, double scale, double phase_scale) {
  index.put(static_cast<int8_t>(tensor.phase));
  index.put(tensor.step);
  index.put_text(tensor.name);
  index.put(static_cast<int8_t>(tensor.token_dims));
  index.put(scale);
  index.put(phase_scale);
  index.put(tensor.scatter);
  index.put(tensor.factor_scatter);
  index.put(tensor.square);
  index.put(static_cast<int8_t>(tensor.kept_in_float32));
  index.put(static_cast<int8_t>(value.scalar_type()));
  index.put(offset);
  index.put(static_cast<uint32_t>(value.dim()));
  for (const int64_t size : value.sizes()) index.put(size);
}

at::Tensor mapped_tensor(const std::shared_ptr<const Mapping>& mapping, uint64_t data_start,
                         int64_t offset, int8_t dtype, const std::vector<int64_t>& shape) {
  const auto type = static_cast<at::ScalarType>(dtype);
  uint64_t bytes = c10::elementSize(type);
  for (const int64_t size : shape) {
    if (size < 0 || (size > 0 && bytes > mapping->size() / static_cast<uint64_t>(size))) {
      bytes = mapping->size() + 1;
      break;
    }
    bytes *= static_cast<uint64_t>(size);
  }
  if (offset < 0 || data_start > mapping->size() || bytes > mapping->size() - data_start ||
      static_cast<uint64_t>(offset) > mapping->size() - data_start - bytes) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = "not a golden record: a tensor lies outside the file",
                 .fix = "make it again (--no-cache)"});
  }
  char* data = const_cast<char*>(mapping->data()) + data_start + offset;
  return at::from_blob(
      data, shape, [mapping](void*) {}, at::TensorOptions().dtype(type));
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

bool GoldenRecorder::listens(Phase phase) const {
  return phase == Phase::kForward || phase == Phase::kStep ||
         (phase == Phase::kBackward && activations_);
}

bool GoldenRecorder::keeps(const Observation& observation) const {
  return listens(observation.phase) &&
         (activations_ || observation.phase != Phase::kForward || observation.name == "logprobs" ||
          observation.name == "loss");
}

void GoldenRecorder::observe(const Observation& observation) {
  if (!keeps(observation)) return;
  const at::NoGradGuard no_grad;
  const std::string key = record_key(observation.phase, observation.step, observation.name);
  SHARDPROOF_ASSERT(by_key_.emplace(key, tensors_.size()).second,
                    "the golden observed '" + key + "' twice");
  GoldenTensor kept;
  kept.value = kept_value(observation, last_step_);
  kept.order = static_cast<int64_t>(tensors_.size());
  kept.phase = observation.phase;
  kept.step = observation.step;
  kept.name = observation.name;
  kept.token_dims = observation.token_map.defined();
  kept.kept_in_float32 = kept.phase == Phase::kForward && kept.value.numel() > 1 &&
                         observation.tensor.scalar_type() == at::kFloat;
  versions_.push_back(kept.value.is_inference() ? 0 : static_cast<uint32_t>(kept.value._version()));
  tensors_.push_back(std::move(kept));
}

void GoldenRecorder::add_member(const GoldenRecorder& member) {
  const at::NoGradGuard no_grad;
  for (GoldenTensor& tensor : tensors_) {
    if (!at::isFloatingType(tensor.value.scalar_type())) continue;
    const auto found = member.by_key_.find(record_key(tensor.phase, tensor.step, tensor.name));
    if (found == member.by_key_.end()) {  // the member skips another step than the golden
      tensor.scatter = tensor.factor_scatter = std::numeric_limits<double>::infinity();
      continue;
    }
    const GoldenTensor& rounded = member.tensors_[found->second];
    tensor.kept_in_float32 = rounded.kept_in_float32;
    const Distance distance = distance_between(tensor.value, rounded.value);
    if (distance.a_finite && !distance.b_finite) {
      tensor.scatter = tensor.factor_scatter = std::numeric_limits<double>::infinity();
      continue;
    }
    tensor.scatter = std::max(tensor.scatter, distance.largest);
    tensor.square = distance.square;
    if (distance.square > 0) {
      tensor.factor_scatter =
          std::max(tensor.factor_scatter, std::fabs(distance.along / distance.square));
    }
  }
}

std::map<std::string, double> GoldenRecorder::scatter() const {
  std::map<std::string, double> scatter;
  for (const GoldenTensor& tensor : tensors_) {
    scatter[record_key(tensor.phase, tensor.step, tensor.name)] = tensor.scatter;
  }
  return scatter;
}

void GoldenRecorder::write(int fd, const std::map<std::string, std::string>& metadata) const {
  const at::NoGradGuard no_grad;
  std::map<std::pair<Phase, int64_t>, double> phase_scales;
  std::vector<double> scales;
  NamedTensors blob;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const GoldenTensor& tensor = tensors_[i];
    SHARDPROOF_ASSERT(tensor.value.is_inference() || tensor.value._version() == versions_[i],
                      tensor.name + " was written to after the golden had observed it");
    if (must_be_finite(tensor) && !all_finite(tensor.value)) {
      golden_fault(tensor, "is not finite");
    }
    scales.push_back(largest_magnitude(tensor.value));
    if (!is_metric(tensor)) {
      double& largest = phase_scales[{tensor.phase, tensor.step}];
      largest = std::max(largest, scales.back());
    }
    blob.emplace_back(record_key(tensor.phase, tensor.step, tensor.name),
                      judged_value(tensor.value));
  }

  // Offsets in the writer's order: the widest dtypes first, otherwise the given order.
  std::vector<size_t> by_width(blob.size());
  for (size_t i = 0; i < by_width.size(); ++i) by_width[i] = i;
  std::stable_sort(by_width.begin(), by_width.end(), [&](size_t a, size_t b) {
    return blob[a].second.element_size() > blob[b].second.element_size();
  });
  std::vector<int64_t> offsets(blob.size());
  int64_t data_bytes = 0;
  for (const size_t i : by_width) {
    offsets[i] = data_bytes;
    data_bytes += bytes_of(blob[i].second);
  }

  IndexWriter index;
  index.put(static_cast<uint32_t>(tensors_.size()));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    put_entry(index, tensors_[i], blob[i].second, offsets[i], scales[i],
              phase_scales[{tensors_[i].phase, tensors_[i].step}]);
  }
  index.put(static_cast<uint32_t>(metadata.size()));
  for (const auto& [key, value] : metadata) {
    index.put_text(key);
    index.put_text(value);
  }
  const std::string sealed = sealed_index(index.bytes());
  blob.emplace_back(kGoldenIndexName,
                    at::from_blob(const_cast<char*>(sealed.data()),
                                  {static_cast<int64_t>(sealed.size())}, at::kByte));
  write_safetensors_fd(fd, blob, metadata);

  uint64_t header_bytes = 0;
  struct stat info {};
  const bool read = ::pread(fd, &header_bytes, sizeof(header_bytes), 0) == sizeof(header_bytes) &&
                    ::fstat(fd, &info) == 0;
  SHARDPROOF_ASSERT(
      read && static_cast<uint64_t>(info.st_size) ==
                  8 + header_bytes + static_cast<uint64_t>(data_bytes) + sealed.size(),
      "the safetensors writer laid the golden out otherwise than its index says");
}

template <class Names>
NamedTensors GoldenRecorder::named(const Names& names_of) const {
  NamedTensors out;
  std::set<std::string> taken;  // logprobs of a scoring pass and of step 1: the first one counts
  for (const GoldenTensor& tensor : tensors_) {
    for (const std::string& name : names_of(tensor)) {
      if (taken.insert(name).second) out.emplace_back(name, judged_value(tensor.value));
    }
  }
  return out;
}

NamedTensors GoldenRecorder::expected_names(int64_t steps) const {
  return named([steps](const GoldenTensor& tensor) {
    return expected_names_of(tensor.name, tensor.step, steps);
  });
}

NamedTensors GoldenRecorder::moment_names() const {
  return named(
      [](const GoldenTensor& tensor) { return moment_names_of(tensor.name, tensor.step); });
}

GoldenRecord GoldenRecord::from_fd(int fd) {
  const auto mapping = std::make_shared<const Mapping>(fd);
  const std::string_view bytes(mapping->data(), mapping->size());
  IndexReader index(golden_index(bytes));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapping->data(), sizeof(header_bytes));
  const uint64_t data_start = header_bytes > mapping->size() ? mapping->size() : 8 + header_bytes;

  GoldenRecord record;
  const auto count = index.take<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) {
    GoldenTensor tensor;
    tensor.order = i;
    tensor.phase = static_cast<Phase>(index.take<int8_t>());
    tensor.step = index.take<int64_t>();
    tensor.name = index.take_text();
    tensor.token_dims = index.take<int8_t>() != 0;
    tensor.scale = index.take<double>();
    tensor.phase_scale = index.take<double>();
    tensor.scatter = index.take<double>();
    tensor.factor_scatter = index.take<double>();
    tensor.square = index.take<double>();
    tensor.kept_in_float32 = index.take<int8_t>() != 0;
    const auto dtype = index.take<int8_t>();
    const auto offset = index.take<int64_t>();
    std::vector<int64_t> shape(index.take<uint32_t>());
    for (int64_t& size : shape) size = index.take<int64_t>();
    tensor.value = mapped_tensor(mapping, data_start, offset, dtype, shape);
    record.by_key_.emplace(record_key(tensor.phase, tensor.step, tensor.name),
                           record.tensors_.size());
    record.tensors_.push_back(std::move(tensor));
  }
  const auto metadata_count = index.take<uint32_t>();
  for (uint32_t i = 0; i < metadata_count; ++i) {
    std::string key = index.take_text();
    record.metadata_[std::move(key)] = index.take_text();
  }
  return record;
}

const GoldenTensor* GoldenRecord::find(Phase phase, int64_t step, const std::string& name) const {
  const auto found = by_key_.find(record_key(phase, step, name));
  return found == by_key_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace shardproof::sim
