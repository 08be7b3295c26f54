#include "sim/case/recorder/golden_recorder.h"

#include <ATen/ATen.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "base/error.h"
#include "sim/case/record/expected_names.h"
#include "sim/case/record/golden_blob.h"
#include "sim/case/record/magnitude.h"
#include "sim/case/record/sampled_rows.h"
#include "tensor/aten_view.h"

namespace shardproof::sim {
namespace {

// Whether later code writes to the tensor in place; gradients are clipped in place.
bool is_written_after(const Observation& observation, int64_t last_step) {
  if (observation.phase != Phase::kStep) return false;
  return observation.step != last_step || observation.kind == ObservationKind::kGradient;
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

}  // namespace

bool GoldenRecorder::listens(Phase phase) const {
  return phase == Phase::kForward || phase == Phase::kStep ||
         ((phase == Phase::kBackward || phase == Phase::kRecompute) && activations_);
}

bool GoldenRecorder::keeps(const Observation& observation) const {
  return listens(observation.phase) && (activations_ || observation.phase != Phase::kForward ||
                                        observation.kind == ObservationKind::kLogprobs ||
                                        observation.kind == ObservationKind::kLoss);
}

void GoldenRecorder::observe(const Observation& observation) {
  if (!keeps(observation)) return;
  const at::NoGradGuard no_grad;
  const std::string key = record_key(observation.phase, observation.step, observation.name);
  SHARDPROOF_ASSERT(by_key_.emplace(key, tensors_.size()).second,
                    "the golden observed '" + key + "' twice");
  SHARDPROOF_ASSERT(observation.kind != ObservationKind::kUnknown,
                    "the golden observed '" + key + "' without its kind");
  KeptTensor kept;
  kept.order = std::ssize(tensors_);
  kept.kind = observation.kind;
  kept.phase = observation.phase;
  kept.step = observation.step;
  kept.name = observation.name;
  kept.token_dims = observation.token_map.defined();
  kept.kept_in_float32 = kept.phase == Phase::kForward && observation.tensor.numel() > 1 &&
                         observation.tensor.scalar_type() == at::kFloat;
  keep_rows(observation.tensor.detach(), kept);
  if (!kept.value.defined()) kept.value = kept_value(observation, last_step_);
  kept.version = kept.value.is_inference() ? 0 : static_cast<uint32_t>(kept.value._version());
  tensors_.push_back(std::move(kept));
}

// Sets the rows of a tensor that is sampled, and their values where the run has more of them.
void GoldenRecorder::keep_rows(const at::Tensor& whole, KeptTensor& kept) const {
  if (rows_.count == 0 || whole.dim() == 0) return;
  if (kept.token_dims && !rows_.samples.empty()) {
    kept.rows = rows_.samples;
    kept.all_rows = rows_.all_samples;
    return;
  }
  kept.rows = drawn_rows(kept, whole.size(0), rows_.count, rows_.seed);
  if (kept.rows.empty()) return;
  kept.all_rows = whole.size(0);
  kept.is_cut = true;
  const at::Tensor on_cpu = whole.cpu().contiguous();
  kept.scale = largest_magnitude(view_of(on_cpu));
  kept.finite = all_finite(view_of(on_cpu));
  kept.value = on_cpu.index_select(0, at::tensor(kept.rows));
}

void GoldenRecorder::add_member(const GoldenRecorder& member) {
  const at::NoGradGuard no_grad;
  for (KeptTensor& tensor : tensors_) {
    if (!at::isFloatingType(tensor.value.scalar_type())) continue;
    const auto found = member.by_key_.find(record_key(tensor.phase, tensor.step, tensor.name));
    const TensorView value = view_of(tensor.value.to(at::kDouble));
    const bool is_there = found != member.by_key_.end();
    // NaN in a row that is not drawn reaches drawn rows if ranks pack both into one.
    if (!is_there || (tensor.finite && !member.tensors_[found->second].finite)) {
      sim::add_member(value, nullptr, tensor);
      continue;
    }
    const KeptTensor& rounded = member.tensors_[found->second];
    tensor.kept_in_float32 = rounded.kept_in_float32;
    const TensorView other = view_of(rounded.value);
    sim::add_member(value, &other, tensor);
  }
}

std::map<std::string, double> GoldenRecorder::scatter() const {
  std::map<std::string, double> scatter;
  for (const KeptTensor& tensor : tensors_) {
    scatter[record_key(tensor.phase, tensor.step, tensor.name)] = tensor.scatter;
  }
  return scatter;
}

void GoldenRecorder::write(int fd, const std::map<std::string, std::string>& metadata) const {
  const at::NoGradGuard no_grad;
  GoldenScales phase_scales;
  std::vector<double> scales;
  NamedTensors blob;
  for (const KeptTensor& tensor : tensors_) {
    SHARDPROOF_ASSERT(tensor.value.is_inference() || tensor.value._version() == tensor.version,
                      tensor.name + " was written to after the golden had observed it");
    if (tensor.is_cut) phase_scales.add(tensor, tensor.finite);
    scales.push_back(tensor.is_cut ? tensor.scale
                                   : phase_scales.add(tensor, view_of(tensor.value)));
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
    GoldenFacts facts = tensors_[i];
    facts.scale = scales[i];
    facts.phase_scale = phase_scales.of_phase(facts);
    const at::Tensor& value = blob[i].second;
    put_tensor(index, facts, static_cast<Dtype>(value.scalar_type()), offsets[i],
               value.sizes().vec());
  }
  index.put(static_cast<uint32_t>(metadata.size()));
  for (const auto& [key, value] : metadata) {
    index.put_text(key);
    index.put_text(value);
  }
  const std::string sealed = sealed_index(index.bytes());
  blob.emplace_back(kGoldenIndexName, at::from_blob(const_cast<char*>(sealed.data()),
                                                    {std::ssize(sealed)}, at::kByte));
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
  for (const KeptTensor& tensor : tensors_) {
    for (const std::string& name : names_of(tensor)) {
      if (taken.insert(name).second) out.emplace_back(name, judged_value(tensor.value));
    }
  }
  return out;
}

NamedTensors GoldenRecorder::expected_names(int64_t steps) const {
  return named([steps](const KeptTensor& tensor) {
    return expected_names_of(tensor.kind, tensor.name, tensor.step, steps);
  });
}

NamedTensors GoldenRecorder::moment_names() const {
  return named([](const KeptTensor& tensor) {
    return moment_names_of(tensor.kind, tensor.name, tensor.step);
  });
}

}  // namespace shardproof::sim
