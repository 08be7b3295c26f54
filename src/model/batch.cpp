#include "model/batch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "tensor/int64_list.h"
#include "tensor/safetensors.h"

namespace shardproof {
namespace {

// One batch file; each failed check names the file.
class BatchFile {
 public:
  explicit BatchFile(const std::string& path) : file_(SafetensorsFile::open(path)) {}

  at::Tensor ids(const std::string& name) const {
    const at::Tensor tensor = file_.get(name);
    if (tensor.scalar_type() != at::kLong) {
      throw_bad_input(
          fmt::format("'{}': {} holds {}", file_.path(), name, c10::toString(tensor.scalar_type())),
          "store it as int64");
    }
    return tensor;
  }

  // As float64; undefined when it is optional and missing.
  at::Tensor numbers(const std::string& name, at::IntArrayRef shape, bool optional) const {
    if (optional && !file_.contains(name)) return {};
    const at::Tensor tensor = file_.get(name);
    check_shape(name, tensor, shape);
    const at::Tensor wide = tensor.to(at::kDouble);
    if (!at::isfinite(wide).all().item<bool>()) {
      throw_bad_input(fmt::format("'{}': {} has a number that is not finite", file_.path(), name),
                      "mend the batch");
    }
    return wide;
  }

  at::Tensor mask(const std::string& name, at::IntArrayRef shape) const {
    const at::Tensor tensor = numbers(name, shape, /*optional=*/false);
    if ((tensor < 0).any().item<bool>()) {
      throw_bad_input(fmt::format("'{}': {} has a negative weight", file_.path(), name),
                      "a mask holds 0 and 1");
    }
    return tensor;
  }

  void check_shape(const std::string& name, const at::Tensor& tensor, at::IntArrayRef shape) const {
    if (tensor.sizes() == shape) return;
    throw_bad_input(fmt::format("'{}': {} has shape [{}], not [{}]", file_.path(), name,
                                fmt::join(tensor.sizes(), ", "), fmt::join(shape, ", ")),
                    "give it the shape of the batch");
  }

  // Checks that every element is within low..high; `what` describes that range.
  void check_range(const std::string& name, const at::Tensor& tensor, int64_t low, int64_t high,
                   const char* what) const {
    const at::Tensor wrong = at::nonzero((tensor < low).logical_or(tensor > high));
    if (wrong.size(0) == 0) return;
    const std::vector<int64_t> index = int64_list(wrong[0]);
    at::Tensor value = tensor;
    for (const int64_t i : index) value = value[i];
    throw_bad_input(fmt::format("'{}': {}[{}]={} is outside {}..{} ({})", file_.path(), name,
                                fmt::join(index, ", "), value.item<int64_t>(), low, high, what),
                    "mend the batch, or config.json");
  }

 private:
  SafetensorsFile file_;
};

// Applies `part` to each defined tensor.
template <class Part>
Batch parts_of(const Batch& batch, const Part& part) {
  Batch parts;
  for (const BatchTensor& each : kBatchTensors) {
    const at::Tensor& whole = batch.*each.tensor;
    if (whole.defined()) parts.*each.tensor = part(whole);
  }
  return parts;
}

}  // namespace

at::Tensor Batch::loss_mask() const {
  const at::Tensor position = at::arange(seq_len(), at::kLong);
  const at::Tensor counted =
      (position < input_lengths.unsqueeze(1)).logical_and(position > 0).to(at::kDouble);
  return token_mask * sample_mask.unsqueeze(1) * counted;
}

Batch Batch::slice(int64_t first, int64_t count) const {
  return parts_of(*this, [&](const at::Tensor& whole) { return whole.narrow(0, first, count); });
}

Batch Batch::select(const std::vector<int64_t>& samples) const {
  const at::Tensor rows = at::tensor(samples, at::kLong);
  return parts_of(*this, [&](const at::Tensor& whole) { return whole.index_select(0, rows); });
}

Batch load_batch(const std::string& path, int64_t vocab_size) {
  const BatchFile file(path);
  Batch batch;
  batch.input_ids = file.ids("input_ids");
  if (batch.input_ids.dim() != 2 || batch.input_ids.numel() == 0) {
    throw_bad_input(fmt::format("'{}': input_ids has shape [{}], an empty batch or none", path,
                                fmt::join(batch.input_ids.sizes(), ", ")),
                    "give [B, S] with at least one token");
  }
  const int64_t size = batch.size(), seq_len = batch.seq_len();
  batch.input_lengths = file.ids("input_lengths");
  file.check_shape("input_lengths", batch.input_lengths, {size});
  file.check_range("input_lengths", batch.input_lengths, 1, seq_len, "the width of input_ids");
  file.check_range("input_ids", batch.input_ids, 0, vocab_size - 1, "the vocabulary");
  batch.token_mask = file.mask("token_mask", {size, seq_len});
  batch.sample_mask = file.mask("sample_mask", {size});
  batch.prev_logprobs = file.numbers("prev_logprobs", {size, seq_len}, /*optional=*/true);
  batch.reference_logprobs = file.numbers("reference_logprobs", {size, seq_len}, /*optional=*/true);
  batch.advantages = file.numbers("advantages", {size, seq_len}, /*optional=*/true);
  return batch;
}

}  // namespace shardproof
