#include "sim/recorded/reference.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "sim/judge/diff/golden_order.h"
#include "sim/recorded/placement.h"

namespace shardproof::sim {
namespace {

using Pieces = std::vector<const RecordedPiece*>;

// Gradients come first in the optimizer's step, then its scalars, then what it wrote.
int place_in_step(const RecordedPiece& piece) {
  if (piece.phase != Phase::kStep || piece.name.starts_with("grad.")) return 0;
  return is_step_scalar(piece.name) ? 1 : 2;
}

struct Tensor {
  Pieces pieces;
  size_t first = 0;  // position of its first piece in the run
};

// The tensors by the order of the computation.
std::vector<Tensor> tensors_of(const RecordedRun& run) {
  std::map<std::string, Tensor> by_key;
  for (size_t i = 0; i < run.pieces.size(); ++i) {
    const RecordedPiece& piece = run.pieces[i];
    Tensor& tensor = by_key[record_key(piece.phase, piece.step, piece.name)];
    if (tensor.pieces.empty()) tensor.first = i;
    tensor.pieces.push_back(&piece);
  }
  std::vector<Tensor> tensors;
  for (auto& [key, tensor] : by_key) tensors.push_back(std::move(tensor));
  const auto place = [](const Tensor& tensor) {
    const RecordedPiece& first = *tensor.pieces.front();
    const int64_t order = first.order < 0 ? std::numeric_limits<int64_t>::max() : first.order;
    return std::tuple(golden_position(first.step, first.phase, place_in_step(first)), order,
                      tensor.first);
  };
  std::sort(tensors.begin(), tensors.end(),
            [&](const Tensor& a, const Tensor& b) { return place(a) < place(b); });
  return tensors;
}

[[noreturn]] void bad_reference(const RecordedRun& run, const RecordedPiece& piece,
                                const std::string& what, const std::string& fix) {
  throw Error(
      {.kind = ErrorKind::kBadInput,
       .what = fmt::format("{}: {} of step {} {}", run.folder, piece.name, piece.step, what),
       .fix = fix});
}

// The addends of one group of peers, and each value once: of several groups that hold addends of
// the same elements the one with the lowest rank counts.
bool is_counted(const RecordedRun& run, const Pieces& pieces, const RecordedPiece& piece) {
  const auto group = [&](const RecordedPiece& one) {
    return run.mesh.peers_along(one.partial_axes, one.rank).front();
  };
  for (const RecordedPiece* other : pieces) {
    const bool same = other->place == piece.place && other->shape == piece.shape &&
                      other->microbatch == piece.microbatch;
    if (same && group(*other) < group(piece)) return false;
  }
  return true;
}

// Writes pieces into the whole tensor, and refuses copies that differ.
class Assembly {
 public:
  Assembly(const RecordedRun& run, const RecordedPiece& first) : run_(run), first_(first) {
    const bool floating = at::isFloatingType(first.values.scalar_type());
    whole_ = at::zeros(first.global_shape, floating ? at::kDouble : at::kLong);
    held_.assign(static_cast<size_t>(whole_.numel()), 0);
  }

  void add(const RecordedPiece& piece) {
    if (piece.global_shape != first_.global_shape) {
      bad_reference(run_, piece,
                    fmt::format("is [{}] on rank {} and [{}] on rank {}",
                                fmt::join(first_.global_shape, ", "), first_.rank,
                                fmt::join(piece.global_shape, ", "), piece.rank),
                    "record both ranks with the same model");
    }
    if (whole_.scalar_type() == at::kDouble) {
      paste<double>(piece, piece.values.to(at::kDouble));
    } else {
      paste<int64_t>(piece, piece.values.to(at::kLong));
    }
  }

  // Unset when no rank recorded some of its elements.
  std::optional<at::Tensor> whole() const {
    const bool lacks = std::find(held_.begin(), held_.end(), 0) != held_.end();
    return lacks ? std::nullopt : std::optional(whole_);
  }

 private:
  template <class Value>
  void paste(const RecordedPiece& piece, const at::Tensor& values) {
    const at::Tensor dense = values.contiguous();
    const Value* from = dense.const_data_ptr<Value>();
    Value* to = whole_.mutable_data_ptr<Value>();
    const bool addend = !piece.partial_axes.empty();
    const double share = piece.is_mean ? mean_share(run_.mesh, piece) : 1;
    plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        char& held = held_[static_cast<size_t>(global + i)];
        Value& here = to[global + i];
        if (addend) {
          here += static_cast<Value>(share * static_cast<double>(from[local + i]));
        } else if (held != 0 && !same(here, from[local + i])) {
          bad_reference(run_, piece, "has unequal copies on its ranks",
                        "compare this run with one that has one rank first");
        } else {
          here = from[local + i];
        }
        held = 1;
      }
    });
  }

  template <class Value>
  static bool same(Value a, Value b) {
    return a == b || (a != a && b != b);
  }

  const RecordedRun& run_;
  const RecordedPiece& first_;
  at::Tensor whole_;
  std::vector<char> held_;
};

// Whether several microbatches gave values of one part, of which none is that of the whole batch.
bool are_of_microbatches(const Pieces& pieces) {
  std::map<std::pair<int64_t, Place>, int64_t> microbatches;
  for (const RecordedPiece* piece : pieces) {
    if (!piece->partial_axes.empty()) continue;
    const auto [at, added] =
        microbatches.emplace(std::pair(piece->rank, piece->place), piece->microbatch);
    if (!added && at->second != piece->microbatch) return true;
  }
  return false;
}

// Unset when the pieces do not make the tensor.
std::optional<at::Tensor> assembled(const RecordedRun& run, const Pieces& pieces) {
  const RecordedPiece& first = *pieces.front();
  int64_t held = 0, size = 1;
  for (const RecordedPiece* piece : pieces) held += piece->values.numel();
  for (const int64_t length : first.global_shape) size *= length;
  if (held < size || are_of_microbatches(pieces)) return std::nullopt;
  Assembly assembly(run, first);
  for (const RecordedPiece* piece : pieces) {
    if (piece->partial_axes.empty() || is_counted(run, pieces, *piece)) assembly.add(*piece);
  }
  return assembly.whole();
}

// The learning rate of each step, where the script did not record it as a scalar.
void observe_rates(const RecordedRun& run, GoldenRecorder& recorder) {
  std::set<int64_t> recorded;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.name == "lr") recorded.insert(piece.step);
  }
  for (size_t i = 0; i < run.lr.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    if (recorded.contains(step)) continue;
    recorder.observe({.name = "lr",
                      .phase = Phase::kStep,
                      .step = step,
                      .tensor = at::scalar_tensor(run.lr[i], at::kDouble)});
  }
}

class Descriptor {
 public:
  Descriptor() : fd_(::memfd_create("shardproof reference", MFD_CLOEXEC)) {
    SHARDPROOF_ASSERT(fd_ >= 0, "memfd_create");
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Reference make_reference(const RecordedRun& run) {
  GoldenRecorder recorder(true);
  Reference out;
  for (const Tensor& tensor : tensors_of(run)) {
    const RecordedPiece& first = *tensor.pieces.front();
    const std::optional<at::Tensor> whole = assembled(run, tensor.pieces);
    if (!whole && first.phase == Phase::kStep && !is_step_scalar(first.name)) {
      bad_reference(run, first, "lacks elements: no rank recorded them",
                    "a rank did not record its piece; record the run again");
    }
    if (!whole) {
      out.left_out.insert(first.name);
      continue;
    }
    recorder.observe(
        {.name = first.name, .phase = first.phase, .step = first.step, .tensor = *whole});
    for (const RecordedPiece* piece : tensor.pieces) {
      const at::ScalarType dtype = piece->values.scalar_type();
      if (at::isFloatingType(dtype) && dtype != at::kDouble) {
        out.narrow.insert(record_key(first.phase, first.step, first.name));
      }
    }
  }
  observe_rates(run, recorder);
  const Descriptor file;
  recorder.write(file.get(), {});
  out.record = GoldenRecord::from_fd(file.get());
  out.knows_optimizer = run.knows_optimizer;
  for (const GoldenTensor& tensor : out.record.tensors()) {
    double& scale = out.scales[{tensor.phase, tensor.step}];
    if (tensor.value.dim() > 0) scale = std::max(scale, tensor.scale);
  }
  return out;
}

}  // namespace shardproof::sim
