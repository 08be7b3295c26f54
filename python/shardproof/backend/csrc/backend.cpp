// A c10d backend that checks each call against those of the other members, then makes it with an
// inner backend (Gloo, NCCL).
//
// On the CPU an asynchronous call is checked and made on the group's own thread, so that it blocks
// nobody; its error comes with wait(). A synchronous call, and each collective of a CUDA tensor, is
// checked on the caller's thread. Messages have a thread for each channel.
#include <ATen/ThreadLocalState.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "call.h"
#include "channel.h"
#include "lane.h"
#include "rank.h"
#include "strides.h"

namespace shardproof {
namespace {

constexpr const char* kSameCalls = "make every member enter the same calls in the same order";
constexpr const char* kOddStrides =
    ", of which Gloo takes the elements as they lie in memory: the result would be wrong; make the "
    "call on tensor.contiguous() and copy the result back";

[[noreturn]] void raise(const std::string& message) { C10_THROW_ERROR(DistBackendError, message); }

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors out;
  for (const Tensors& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

// A call that is made on another thread.
class LaterWork : public c10d::Work {
 public:
  explicit LaterWork(Tensors result)
      : Work(-1, c10d::OpType::UNKNOWN),
        result_(std::move(result)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors())) {}

  // `inner`: the work that was waited for; null where nothing was to be done.
  void complete(WorkPtr inner) {
    inner_ = std::move(inner);
    future_->markCompleted(value());
    finish();
  }
  void fail(const std::exception_ptr& error) {
    future_->setError(error);
    finish(error);
  }
  std::vector<at::Tensor> result() override { return result_; }
  int sourceRank() const override { return inner_ ? inner_->sourceRank() : -1; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::IValue value() const {
    try {
      if (inner_) return inner_->getFuture()->value();
    } catch (const std::exception&) {  // Gloo's messages have no future
    }
    return c10::IValue(result_);
  }

  const Tensors result_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  WorkPtr inner_;
};
using LaterWorkPtr = c10::intrusive_ptr<LaterWork>;

// Work of a device that is under way while its messages are still being checked.
class WatchedWork : public c10d::Work {
 public:
  WatchedWork(std::vector<LaterWorkPtr> checks, WorkPtr inner)
      : Work(-1, c10d::OpType::UNKNOWN), checks_(std::move(checks)), inner_(std::move(inner)) {}

  bool isCompleted() override {
    for (const LaterWorkPtr& check : checks_) {
      if (!check->isCompleted()) return false;
    }
    return !inner_ || inner_->isCompleted();
  }
  bool isSuccess() const override { return !inner_ || inner_->isSuccess(); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const LaterWorkPtr& check : checks_) check->wait(timeout);
    return !inner_ || inner_->wait(timeout);
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }

 private:
  const std::vector<LaterWorkPtr> checks_;
  const WorkPtr inner_;
};

class CheckingBackend;

// A call as the user makes it: what is compared, what is sent, and how the inner backend makes it.
struct Operation {
  Call call = {};
  std::string key = {};     // what must be equal on all members besides op and reduce op
  Tensors sent = {};        // this rank's contribution
  Tensors received = {};    // where its result goes
  bool in_place = false;    // the result overwrites `sent`
  bool replicated = false;  // all members must receive the same
  bool asynchronous = true;
  Integers splits = {};          // all_to_all: what goes to each member, then what comes from each
  std::string odd_strides = {};  // of a tensor of which Gloo makes wrong values
  // `by`: the backend whose group makes the call, which a fault may change.
  std::function<WorkPtr(const CheckingBackend& by, Tensors& sent)> launch = {};
  std::function<void()> finish = {};  // once the inner call is done
};

class CheckingBackend : public c10d::Backend {
 public:
  CheckingBackend(std::shared_ptr<Rank> own, std::map<std::string, BackendPtr> inner,
                  BackendPtr side, Integers ranks, std::string name, int rank)
      : Backend(rank, static_cast<int>(ranks.size())),
        own_(std::move(own)),
        inner_(std::move(inner)),
        channel_(std::move(side), std::chrono::milliseconds(own_->settings().timeout_ms)),
        ranks_(std::move(ranks)),
        name_(std::move(name)) {
    own_->add(this);
  }

  // Collectives that were not waited for are still made, as with Gloo; messages are not. A job may
  // let go of a tensor that Python made, for which it needs the lock of the interpreter.
  ~CheckingBackend() override {
    own_->remove(this);
    std::optional<pybind11::gil_scoped_release> unlocked;
    if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
    lane_.stop();
    bool busy = false;
    for (auto& [key, channel] : message_lanes_) busy = busy || channel->lane.is_busy();
    if (busy) channel_.hang_up();
    for (auto& [key, channel] : message_lanes_) channel->lane.stop();
  }

  const std::string getBackendName() const override { return "shardproof"; }
  bool supportsCoalescing() const override { return device_inner()->supportsCoalescing(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    for (auto& [device, inner] : inner_) inner->setTimeout(timeout);
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return device_inner()->getBackendOptions();
  }
  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    for (auto& [device, inner] : inner_) inner->setGroupUid(uid);
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return static_cast<uint64_t>(next_); }
  c10d::ErrorType getError() override { return device_inner()->getError(); }
  void abort() override {
    channel_.hang_up();
    for (auto& [device, inner] : inner_) inner->abort();
  }
  void shutdown() override {
    for (auto& [device, inner] : inner_) inner->shutdown();
  }
  std::shared_ptr<c10::Allocator> getMemAllocator() override {
    return device_inner()->getMemAllocator();
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return device_inner()->allocateTensor(size, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex index) override {
    return device_inner()->supportsTensorAlloc(index);
  }

  void startCoalescing() override {
    coalescing_ = true;
    device_inner()->startCoalescing();
  }
  WorkPtr endCoalescing() override {
    coalescing_ = false;
    WorkPtr inner = device_inner()->endCoalescing();
    if (checks_.empty()) return inner;
    return c10::make_intrusive<WatchedWork>(std::exchange(checks_, {}), std::move(inner));
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Operation op = operation("broadcast", tensors, options);
    op.call.direction = " from rank " + std::to_string(global(options.rootRank));
    op.received = tensors;
    op.in_place = op.replicated = true;
    op.launch = [options](const CheckingBackend& by, Tensors& sent) {
      return by.inner_of(sent)->broadcast(sent, options);
    };
    return collective(std::move(op));
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return all_reduce(
        "all_reduce", tensors, options,
        [](auto& inner, Tensors& sent, const auto& how) { return inner->allreduce(sent, how); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return all_reduce("all_reduce_coalesced", tensors, options,
                      [](auto& inner, Tensors& sent, const auto& how) {
                        return inner->allreduce_coalesced(sent, how);
                      });
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return inner_of(tensors)->allreduce_sparse(tensors, options);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    Operation op = operation("reduce", tensors, options);
    op.call.reduce_op = reduce_text(options.reduceOp);
    op.call.direction = " to rank " + std::to_string(global(options.rootRank));
    const bool is_root = options.rootRank == rank_;
    if (is_root) op.received = tensors;
    op.in_place = is_root;
    op.launch = [options, is_root](const CheckingBackend& by, Tensors& sent) {
      c10d::ReduceOptions how = options;
      const BackendPtr inner = by.inner_of(sent);
      how.reduceOp = scaled(inner, options.reduceOp, sent, is_root);
      return inner->reduce(sent, how);
    };
    return collective(std::move(op));
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    Operation op = operation("all_gather", inputs, options);
    const Tensors parts = flat(outputs);
    const bool equal = std::all_of(parts.begin(), parts.end(), [&](const at::Tensor& part) {
      return part.sizes() == parts[0].sizes();
    });
    if (equal)
      name_odd_result(op, parts.empty() ? Tensors() : Tensors{parts[0]}, 1);
    else
      op.key = tensors_text(parts);  // uneven parts: all members must expect the same
    op.received = parts;
    op.replicated = true;
    op.launch = [outputs, options](const CheckingBackend& by, Tensors& sent) mutable {
      return by.inner_of(sent)->allgather(outputs, sent, options);
    };
    return collective(std::move(op));
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    Operation op = operation("all_gather_coalesced", inputs, options);
    op.received = flat(outputs);
    op.replicated = true;
    op.launch = [outputs, options](const CheckingBackend& by, Tensors& sent) mutable {
      return by.inner_of(sent)->allgather_coalesced(outputs, sent, options);
    };
    return collective(std::move(op));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    Operation op = operation("all_gather_into_tensor", {input}, options);
    name_odd_result(op, {output}, size_);
    op.received = {output};
    op.replicated = true;
    op.launch = [output, options](const CheckingBackend& by, Tensors& sent) mutable {
      return by.inner_of(sent)->_allgather_base(output, sent[0], options);
    };
    return collective(std::move(op));
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    Operation op = operation("all_gather_into_tensor_coalesced", inputs, options);
    op.received = outputs;
    op.replicated = true;
    op.launch = [outputs, options](const CheckingBackend& by, Tensors& sent) mutable {
      return by.inner_of(sent)->allgather_into_tensor_coalesced(outputs, sent, options);
    };
    return collective(std::move(op));
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    Operation op = operation("gather", inputs, options);
    op.call.direction = " to rank " + std::to_string(global(options.rootRank));
    op.received = flat(outputs);
    op.launch = [outputs, options](const CheckingBackend& by, Tensors& sent) mutable {
      return by.inner_of(sent)->gather(outputs, sent, options);
    };
    return collective(std::move(op));
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    Operation op = operation("scatter", outputs, options);
    op.call.direction = " from rank " + std::to_string(global(options.rootRank));
    op.sent = flat(inputs);
    op.received = outputs;
    op.launch = [outputs, options](const CheckingBackend& by, Tensors& sent) mutable {
      std::vector<Tensors> parts;
      if (!sent.empty()) parts.push_back(sent);
      return by.inner_of(outputs)->scatter(outputs, parts, options);
    };
    return collective(std::move(op));
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    Operation op = operation("reduce_scatter", flat(inputs), options);
    return reduce_scatter_by(std::move(op), outputs, options,
                             [](auto& inner, Tensors& out, Tensors& sent, const auto& how) {
                               std::vector<Tensors> parts{sent};
                               return inner->reduce_scatter(out, parts, how);
                             });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    Operation op = operation("reduce_scatter_tensor", {input}, options);
    name_odd_result(op, {output}, 1, size_);
    return reduce_scatter_by(std::move(op), {output}, options,
                             [](auto& inner, Tensors& out, Tensors& sent, const auto& how) {
                               return inner->_reduce_scatter_base(out[0], sent[0], how);
                             });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    Operation op = operation("reduce_scatter_tensor_coalesced", inputs, options);
    return reduce_scatter_by(std::move(op), outputs, options,
                             [](auto& inner, Tensors& out, Tensors& sent, const auto& how) {
                               return inner->reduce_scatter_tensor_coalesced(out, sent, how);
                             });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, Integers& output_splits,
                        Integers& input_splits, const c10d::AllToAllOptions& options) override {
    Operation op = operation("all_to_all_single", {input}, options);
    op.key = dtype_text(input.scalar_type()) +
             list_text(input.dim() > 1 ? input.sizes().slice(1).vec() : Integers());
    op.splits = splits_of(input, input_splits);
    const Integers expected = splits_of(output, output_splits);
    op.splits.insert(op.splits.end(), expected.begin(), expected.end());
    op.received = {output};
    op.launch = [output, output_splits, input_splits, options](const CheckingBackend& by,
                                                               Tensors& sent) mutable {
      return by.inner_of(sent)->alltoall_base(output, sent[0], output_splits, input_splits,
                                              options);
    };
    return collective(std::move(op));
  }

  // Gloo has none: its parts go through one all_to_all_single.
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    Operation op = operation("all_to_all", inputs, options);
    op.key = inputs.empty() ? "" : dtype_text(inputs[0].scalar_type());
    Integers sizes, expected;
    for (const at::Tensor& part : inputs) sizes.push_back(part.numel());
    for (const at::Tensor& part : outputs) expected.push_back(part.numel());
    op.splits = sizes;
    op.splits.insert(op.splits.end(), expected.begin(), expected.end());
    op.received = outputs;
    if (!is_gloo(inner_of(inputs))) {
      op.launch = [outputs, options](const CheckingBackend& by, Tensors& sent) mutable {
        return by.inner_of(sent)->alltoall(outputs, sent, options);
      };
      return collective(std::move(op));
    }
    auto whole = std::make_shared<at::Tensor>();
    op.launch = [sizes, expected, options, whole](const CheckingBackend& by,
                                                  Tensors& sent) mutable {
      Tensors rows;
      for (const at::Tensor& part : sent) rows.push_back(part.reshape({-1}));
      at::Tensor input = at::cat(rows);
      int64_t total = 0;
      for (const int64_t size : expected) total += size;
      *whole = at::empty({total}, input.options());
      return by.inner_of(sent)->alltoall_base(*whole, input, expected, sizes, options);
    };
    op.finish = [outputs, whole] {
      int64_t start = 0;
      for (const at::Tensor& part : outputs) {
        part.copy_(whole->narrow(0, start, part.numel()).view_as(part));
        start += part.numel();
      }
    };
    return collective(std::move(op));
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    Operation op = operation("barrier", {}, options);
    const bool on_device = options.device && !options.device->is_cpu();
    op.launch = [options, on_device](const CheckingBackend& by, Tensors&) {
      return (on_device ? by.device_inner() : by.inner_.begin()->second)->barrier(options);
    };
    return collective(std::move(op));
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override {
    inner_.begin()->second->monitoredBarrier(options, wait_all);
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return message("send", " to rank " + std::to_string(global(peer)), tensors, peer, tag,
                   [inner = inner_of(tensors), tag](Tensors& sent, int to) {
                     return inner->send(sent, to, tag);
                   });
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return message("recv", " from rank " + std::to_string(global(peer)), tensors, peer, tag,
                   [inner = inner_of(tensors), tag](Tensors& received, int from) {
                     return inner->recv(received, from, tag);
                   });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return message("recv", " from any rank", tensors, kAnyone, tag,
                   [inner = inner_of(tensors), tag](Tensors& received, int from) {
                     return from == kAnyone ? inner->recvAnysource(received, tag)
                                            : inner->recv(received, from, tag);
                   });
  }

 private:
  static constexpr int kAnyone = -1;

  static bool is_gloo(const BackendPtr& inner) { return inner->getBackendName() == "gloo"; }
  static bool on_cpu(const Tensors& tensors) { return tensors.empty() || tensors[0].is_cpu(); }

  // Gloo has no PREMUL_SUM: what is sent is scaled before a SUM. `in_place`: it is overwritten.
  static c10d::ReduceOp scaled(const BackendPtr& inner, const c10d::ReduceOp& op, Tensors& sent,
                               bool in_place) {
    if (op.op_ != c10d::ReduceOp::PREMUL_SUM || !is_gloo(inner)) return op;
    const auto* factor = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK(factor != nullptr,
                "ReduceOp.PREMUL_SUM has no factor; make it with "
                "torch.distributed._make_nccl_premul_sum(factor)");
    Tensors values;
    for (const at::Tensor& own : sent) {
      values.push_back(factor->tensor_factor.defined() ? own * factor->tensor_factor.to(own.dtype())
                                                       : own * factor->double_factor);
    }
    replace(sent, values, in_place);
    return c10d::ReduceOp::SUM;
  }

  BackendPtr inner_of(const Tensors& tensors) const {
    const std::string device =
        tensors.empty() ? "cpu" : c10::DeviceTypeName(tensors[0].device().type(), true);
    const auto found = inner_.find(device);
    if (found != inner_.end()) return found->second;
    raise("group " + group_text() + " has no inner backend for tensors on " + device +
          "; set SHARDPROOF_INNER to one, such as \"cpu:gloo," + device + ":nccl\"");
  }
  bool uses_gloo(const Tensors& tensors) const {
    if (tensors.empty()) return false;
    const auto found = inner_.find(c10::DeviceTypeName(tensors[0].device().type(), true));
    return found != inner_.end() && is_gloo(found->second);
  }
  const BackendPtr& device_inner() const {
    const auto found = inner_.find("cuda");
    return found != inner_.end() ? found->second : inner_.begin()->second;
  }

  int64_t global(int64_t rank) const {
    return rank >= 0 && rank < size_ ? ranks_[static_cast<size_t>(rank)] : rank;
  }
  int64_t own_rank() const { return global(rank_); }
  // "tp" of a mesh's group "mesh_tp", "world", else the name that PyTorch gave.
  std::string group_name() const {
    if (pg_desc_ == "default_pg") return "world";
    if (pg_desc_.rfind("mesh_", 0) == 0) return pg_desc_.substr(5);
    return pg_desc_.empty() || pg_desc_ == "undefined" ? name_ : pg_desc_;
  }
  std::string group_text() const {
    constexpr size_t kMostListed = 16;
    if (ranks_.size() <= kMostListed) return group_name() + " " + list_text(ranks_);
    return group_name() + " [" + std::to_string(ranks_[0]) + ", " + std::to_string(ranks_[1]) +
           " .. " + std::to_string(ranks_.back()) + "]";
  }

  Integers splits_of(const at::Tensor& tensor, const Integers& splits) const {
    if (!splits.empty()) return splits;
    const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
    return Integers(static_cast<size_t>(size_), rows / size_);
  }

  template <typename AnyOptions>
  Operation operation(const std::string& name, const Tensors& sent, const AnyOptions& options) {
    Operation op;
    op.call.op = name;
    op.call.tensors = tensors_text(sent);
    op.key = op.call.tensors;
    op.sent = sent;
    op.asynchronous = options.asyncOp;
    return op;
  }

  // A result that is not `many` times what is sent, `of` times itself, is part of the call: "[2]
  // into [5] float32". The inner backend would refuse it on this rank alone, and leave the others
  // in the call.
  static void name_odd_result(Operation& op, const Tensors& result, int64_t many, int64_t of = 1) {
    const bool fits = op.sent.size() == 1 && result.size() == 1 &&
                      of * result[0].numel() == many * op.sent[0].numel() &&
                      result[0].scalar_type() == op.sent[0].scalar_type();
    if (fits) return;
    op.call.tensors += " into " + tensors_text(result);
    op.key = op.call.tensors;
  }

  template <typename AnyOptions, typename Make>
  WorkPtr all_reduce(const std::string& name, const Tensors& tensors, const AnyOptions& options,
                     Make make) {
    Operation op = operation(name, tensors, options);
    op.call.reduce_op = reduce_text(options.reduceOp);
    op.received = tensors;
    op.in_place = op.replicated = true;
    op.launch = [options, make](const CheckingBackend& by, Tensors& sent) {
      const BackendPtr inner = by.inner_of(sent);
      AnyOptions how = options;
      how.reduceOp = scaled(inner, options.reduceOp, sent, true);
      return make(inner, sent, how);
    };
    return collective(std::move(op));
  }

  template <typename Make>
  WorkPtr reduce_scatter_by(Operation op, const Tensors& outputs,
                            const c10d::ReduceScatterOptions& options, Make make) {
    op.call.reduce_op = reduce_text(options.reduceOp);
    op.received = outputs;
    op.launch = [out = outputs, options, make](const CheckingBackend& by, Tensors& sent) mutable {
      const BackendPtr inner = by.inner_of(sent);
      c10d::ReduceScatterOptions how = options;
      how.reduceOp = scaled(inner, options.reduceOp, sent, false);
      return make(inner, out, sent, how);
    };
    return collective(std::move(op));
  }

  // The fault is decided, the call numbered and noted in the caller's thread.
  WorkPtr collective(Operation op) {
    op.call.site = own_->call_site();
    if (uses_gloo(op.sent.empty() ? op.received : op.sent)) {
      const Strides strides = strides_of_call(op.call.op, op.sent, op.received);
      op.call.strides = strides.common;
      op.odd_strides = strides.odd;
    }
    op.call.sequence = next_;
    const FaultPtr fault = own_->fault_at(group_name(), op.call, op.sent);
    if (fault && fault->kind == "skip") {
      own_->note(*fault);
      return done(op.received);
    }
    if (fault && fault->kind == "wrong_group") {
      own_->note(*fault);
      return other_group(fault->to).collective(std::move(op));
    }
    ++next_;
    own_->enter(name_, group_text(), op.call, next_);
    if (!op.asynchronous || !on_cpu(op.sent) || !on_cpu(op.received)) {
      WorkPtr work;
      lane_.run_here([&] { work = perform(op, fault); });
      return work;
    }
    auto later = c10::make_intrusive<LaterWork>(op.received);
    lane_.push(job(later, [this, op = std::move(op), fault]() mutable {
      WorkPtr work = perform(op, fault);
      if (work) work->wait();
      return work;
    }));
    return later;
  }

  // Where a fault makes the call instead: a group with this name and as many members.
  CheckingBackend& other_group(const std::string& name) {
    for (Backend* group : own_->groups()) {
      auto& other = static_cast<CheckingBackend&>(*group);
      if (&other != this && other.group_name() == name && other.size_ == size_) return other;
    }
    raise("rank " + std::to_string(own_rank()) + " is in no other group " + name + " of " +
          std::to_string(size_) + " members, to which a fault moves a call of group " +
          group_text() + "; write to=NAME of one that has as many");
  }

  static WorkPtr done(const Tensors& result) {
    auto work = c10::make_intrusive<LaterWork>(result);
    work->complete(nullptr);
    return work;
  }

  // A job of a lane: its result or its error goes to `later`.
  template <typename Make>
  static std::function<void()> job(LaterWorkPtr later, Make make) {
    return [later = std::move(later), make = std::move(make),
            state = at::ThreadLocalState()]() mutable {
      at::ThreadLocalStateGuard guard(state);
      try {
        later->complete(make());
      } catch (...) {
        later->fail(std::current_exception());
      }
    };
  }

  WorkPtr perform(Operation& op, const FaultPtr& fault) {
    at::NoGradGuard no_grad;
    if (own_->settings().checks) agree(op);
    const bool digests = own_->settings().digests;
    const uint64_t sent = digests ? digest(op.sent) : 0;
    if (fault && spoil_sent(*fault, op.sent, op.in_place)) own_->note(*fault);
    WorkPtr work = op.launch(*this, op.sent);
    if (!work || (!op.finish && !digests && !fault)) return work;
    work->wait();
    if (op.finish) op.finish();
    if (fault && spoil_received(*fault, op.received, size_)) own_->note(*fault);
    if (!digests) return work;
    const uint64_t received = digest(op.received);
    own_->log_digests(group_text(), op.call, sent, received);
    if (op.replicated) agree_on_result(op.call, received);
    return work;
  }

  void agree(const Operation& op) {
    if (size_ == 1) return;
    throw_if_broken();
    if (!op.odd_strides.empty()) {
      fail("call " + std::to_string(op.call.sequence) + " of group " + group_text() + ": rank " +
           std::to_string(own_rank()) + " calls " + op.call.text() + " on " + op.odd_strides +
           kOddStrides);
    }
    const Record mine =
        op.call.record(own_rank(), op.call.op_text() + "|" + op.key + op.call.strides);
    const Rank::Wait wait = wait_in(op.call, false);
    const Rank::Waiting waiting(*own_, wait);
    try {
      const Channel::Extremes found = channel_.extremes(mine);
      if (found.low.digest != found.high.digest) {
        fail("call " + std::to_string(op.call.sequence) + " of group " + group_text() +
             " differs: " + by_digest(channel_.records(mine), " call") + "; " + kSameCalls);
      }
      if (!op.splits.empty()) agree_on_splits(op, mine);
    } catch (const Lost& lost) {
      fail(explain(lost, wait));
    }
  }

  void agree_on_splits(const Operation& op, const Record& mine) {
    const auto size = static_cast<size_t>(size_);
    Integers splits = op.splits;  // a rank that gives a wrong number of them says so
    const bool complete = splits.size() == 2 * size;
    if (!complete) splits.assign(2 * size, -1);
    const at::Tensor bytes = channel_.table(splits.data(), splits.size() * sizeof(int64_t));
    const auto* all = static_cast<const int64_t*>(bytes.data_ptr());
    for (size_t from = 0; from < size; ++from) {
      for (size_t to = 0; to < size; ++to) {
        const int64_t sends = all[from * 2 * size + to];
        const int64_t expects = all[to * 2 * size + size + from];
        if (sends == expects) continue;
        const std::vector<Record> calls = channel_.records(mine);
        const char* unit = op.call.op == "all_to_all" ? " elements" : " rows";
        const auto name = [&](size_t i) { return "rank " + std::to_string(ranks_[i]); };
        fail("call " + std::to_string(op.call.sequence) + " of group " + group_text() +
             " differs: " + name(from) + " sends " + std::to_string(sends) + unit + " to " +
             name(to) + ", which expects " + std::to_string(expects) + "; " + name(from) +
             " calls " + calls[from].text + ", " + name(to) + " calls " + calls[to].text +
             "; make the input splits of each rank the output splits of the others");
      }
    }
    if (!complete)
      raise("all_to_all has " + std::to_string(op.splits.size() / 2) + " splits for " +
            std::to_string(size_) + " members; give one for each");
  }

  void agree_on_result(const Call& call, uint64_t result) {
    if (size_ == 1) return;
    Record mine;
    mine.rank = own_rank();
    mine.digest = result;
    char hex[32];
    std::snprintf(hex, sizeof hex, "%016lx", static_cast<unsigned long>(result));
    mine.set_text(std::string("digest ") + hex);
    try {
      const Channel::Extremes found = channel_.extremes(mine);
      if (found.low.digest == found.high.digest) return;
      fail("the result of call " + std::to_string(call.sequence) + " of group " + group_text() +
           " differs: " + by_digest(channel_.records(mine), " hold") + "; " + call.text() +
           " must give every member the same bits");
    } catch (const Lost& lost) {
      fail(explain(lost, wait_in(call, false)));
    }
  }

  // "rank 1 calls all_reduce(max) ..., ranks 0, 2 call all_reduce(sum) ...": the fewest first.
  static std::string by_digest(const std::vector<Record>& records, const std::string& verb) {
    std::map<uint64_t, std::pair<Integers, std::string>> kinds;
    for (const Record& record : records) {
      auto& [ranks, text] = kinds[record.digest];
      if (ranks.empty()) text = record.text;
      ranks.push_back(record.rank);
    }
    std::vector<std::pair<Integers, std::string>> sorted;
    for (auto& [digest, kind] : kinds) sorted.push_back(std::move(kind));
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return a.first.size() != b.first.size() ? a.first.size() < b.first.size()
                                              : a.first[0] > b.first[0];
    });
    std::string out;
    for (const auto& [ranks, text] : sorted) {
      out +=
          (out.empty() ? "" : ", ") + names(ranks) + verb + (ranks.size() == 1 ? "s " : " ") + text;
    }
    return out;
  }

  // What this rank waits for in a call: all others, or of a message its other end.
  Rank::Wait wait_in(const Call& call, bool is_message, int peer = kAnyone) const {
    Rank::Wait wait;
    wait.where = "rank " + std::to_string(own_rank()) + " waits in call " +
                 std::to_string(call.sequence) + " of group " + group_text() + ": " + call.text();
    wait.group = name_;
    wait.number = is_message ? 0 : call.sequence + 1;
    for (int other = 0; other < size_; ++other) {
      if (other != rank_ && (peer == kAnyone || peer == other)) {
        wait.others.push_back(global(other));
      }
    }
    return wait;
  }

  // Why an exchange ended without an answer.
  std::string explain(const Lost& lost, const Rank::Wait& wait) {
    own_->publish_status();
    std::string cause = own_->finding();
    if (cause.empty() && lost.timed_out) {  // whoever came late has said so by then
      std::this_thread::sleep_for(own_->report_interval() * 3 / 2);
      cause = own_->finding();
    }
    for (int i = 0; cause.empty() && !lost.timed_out && i < 10; ++i) {  // it comes before the close
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      cause = own_->finding();
    }
    if (!cause.empty()) return wait.where + "; " + cause;
    const Rank::Missing missing = own_->missing(wait);
    const std::string limit = seconds_text(own_->settings().timeout_ms);
    if (missing.ranks.empty()) {
      return wait.where + "; " +
             (lost.timed_out ? "all members came, but after more than " + limit +
                                   "; set SHARDPROOF_TIMEOUT above it"
                             : "all members came, but the side channel failed: " + lost.reason);
    }
    const std::string who = wait.where + "; " + names(missing.ranks) + " did not come ";
    if (!lost.timed_out) {
      return who + "and a connection was closed" + missing.last +
             "; read the error of the rank that ended first, and " + kSameCalls;
    }
    return who + "within " + limit + missing.last + "; " + kSameCalls +
           ", or set SHARDPROOF_TIMEOUT above " + limit + " if " +
           (missing.ranks.size() == 1 ? "the rank is" : "the ranks are") + " only slow";
  }

  // The group's calls are out of step from here on: each later one raises the same error.
  [[noreturn]] void fail(const std::string& message) {
    own_->publish_finding(message);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (broken_.empty()) broken_ = message;
    }
    channel_.hang_up();
    raise(message);
  }
  void throw_if_broken() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_.empty()) raise(broken_);
  }

  template <typename Make>
  WorkPtr message(const std::string& name, const std::string& direction, Tensors& tensors, int peer,
                  int tag, Make make) {
    Call call;
    call.op = name;
    call.direction = direction + (tag == 0 ? "" : " (tag " + std::to_string(tag) + ")");
    call.tensors = tensors_text(tensors);
    call.site = own_->call_site();
    const std::string key = message_key(tensors);
    const bool sends = name == "send";
    Channeled& channel = channel_to(sends, peer, tag);
    call.sequence = channel.next;
    const FaultPtr fault = own_->fault_at(group_name(), call, sends ? tensors : Tensors());
    if (fault && fault->kind == "skip") {
      own_->note(*fault);
      return done(tensors);
    }
    ++channel.next;
    own_->enter(name_, group_text(), call, 0);
    Tensors own = tensors;
    if (fault && sends && spoil_sent(*fault, own, false)) own_->note(*fault);
    const auto spoil = [this, fault](Tensors& received) {
      if (fault && spoil_received(*fault, received, size_)) own_->note(*fault);
    };
    auto later = c10::make_intrusive<LaterWork>(tensors);
    if (on_cpu(tensors)) {
      channel.lane.push(job(later, [=, this]() mutable {
        const int other = agree_on_message(call, key, sends, peer, tag);
        WorkPtr work = make(own, other);
        work->wait();
        if (!sends) spoil(own);
        return work;
      }));
      return later;
    }
    channel.lane.push(job(later, [=, this]() -> WorkPtr {
      agree_on_message(call, key, sends, peer, tag);
      return nullptr;
    }));
    WorkPtr inner = make(own, peer);
    if (!coalescing_) return c10::make_intrusive<WatchedWork>(std::vector{later}, inner);
    checks_.push_back(later);
    return inner;
  }

  // Returns who the other is, in group order.
  int agree_on_message(const Call& call, const std::string& key, bool sends, int peer, int tag) {
    if (!own_->settings().checks) return peer;
    throw_if_broken();
    const Record mine = call.record(own_rank(), key);
    const Rank::Wait wait = wait_in(call, true, peer);
    const Rank::Waiting waiting(*own_, wait);
    try {
      std::pair<Record, int> other;
      if (peer == kAnyone)
        other = channel_.swap_with_any(mine, tag);
      else
        other = {channel_.swap(mine, peer, tag, sends), peer};
      if (other.first.digest == mine.digest) return other.second;
      const int64_t from = sends ? mine.rank : other.first.rank;
      const int64_t to = sends ? other.first.rank : mine.rank;
      fail("message " + std::to_string(call.sequence) + " from rank " + std::to_string(from) +
           " to rank " + std::to_string(to) + " of group " + group_text() + " differs: " +
           by_digest({mine, other.first}, " call") + "; make the receiver expect what is sent");
    } catch (const Lost& lost) {
      fail(explain(lost, wait));
    }
  }

  // The messages of one direction to one peer with one tag arrive in their order.
  struct Channeled {
    int64_t next = 0;
    Lane lane = {};
  };
  Channeled& channel_to(bool sends, int peer, int tag) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& place = message_lanes_[{sends, peer, tag}];
    if (!place) place = std::make_unique<Channeled>();
    return *place;
  }

  const std::shared_ptr<Rank> own_;
  const std::map<std::string, BackendPtr> inner_;  // by device type
  Channel channel_;
  const Integers ranks_;  // global, in group order
  const std::string name_;
  std::atomic<int64_t> next_{0};
  bool coalescing_ = false;
  std::vector<LaterWorkPtr> checks_;  // of the messages that are being coalesced
  std::mutex mutex_;                  // of all that follows
  std::string broken_;
  std::map<std::tuple<bool, int, int>, std::unique_ptr<Channeled>> message_lanes_;
  Lane lane_;
};

}  // namespace
}  // namespace shardproof

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  namespace py = pybind11;
  using namespace shardproof;
  py::class_<Fault>(module, "Fault")
      .def(py::init<>())
      .def_readwrite("kind", &Fault::kind)
      .def_readwrite("op", &Fault::op)
      .def_readwrite("group", &Fault::group)
      .def_readwrite("call", &Fault::call)
      .def_readwrite("every", &Fault::every)
      .def_readwrite("site", &Fault::site)
      .def_readwrite("to", &Fault::to)
      .def_readwrite("output", &Fault::output)
      .def_readwrite("text", &Fault::text);
  py::class_<Settings>(module, "Settings")
      .def(py::init<>())
      .def_readwrite("rank", &Settings::rank)
      .def_readwrite("timeout_ms", &Settings::timeout_ms)
      .def_readwrite("notice_ms", &Settings::notice_ms)
      .def_readwrite("digests", &Settings::digests)
      .def_readwrite("calls_folder", &Settings::calls_folder)
      .def_readwrite("checks", &Settings::checks)
      .def_readwrite("faults", &Settings::faults)
      .def_readwrite("skipped", &Settings::skipped)
      .def_readwrite("here", &Settings::here);
  py::class_<Rank, std::shared_ptr<Rank>>(module, "Rank");
  py::class_<CheckingBackend, c10d::Backend, c10::intrusive_ptr<CheckingBackend>>(module, "Backend")
      .def_property_readonly("options", &CheckingBackend::getBackendOptions);
  // The one of this process, as long as a group keeps it; `fresh`: a new one for a new world.
  module.def("rank", [](Settings settings, const Rank::StorePtr& store, bool fresh) {
    static std::weak_ptr<Rank> current;
    std::shared_ptr<Rank> own = current.lock();
    if (fresh || !own) current = own = std::make_shared<Rank>(std::move(settings), store);
    return own;
  });
  module.def(
      "backend",
      [](std::shared_ptr<Rank> own, std::map<std::string, BackendPtr> inner, BackendPtr side,
         Integers ranks, std::string name, int rank) {
        return c10::make_intrusive<CheckingBackend>(std::move(own), std::move(inner),
                                                    std::move(side), std::move(ranks),
                                                    std::move(name), rank);
      },
      py::arg("own"), py::arg("inner"), py::arg("side"), py::arg("ranks"), py::arg("name"),
      py::arg("rank"));
}
