// Communication among one group of ranks: a thin layer over c10d::Backend (emulated, gloo, nccl)
// that makes tensors contiguous, handles uneven sizes and empty tensors, and reports every call
// with its label to a CallListener.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/backend.h"
#include "base/call.h"
#include "comm/communicator_handle.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace shardproof {

// Receives every call of its communicators, on the rank's own thread.
class CallListener {
 public:
  virtual ~CallListener() = default;
  virtual void before_call(const Call& call) = 0;
  virtual void before_wait(const Call& call) {}  // of an asynchronous call
  virtual void after_call(const Call& call) {}   // when the result is there
};

// A collective in flight. The destructor never waits: who matches the calls finds one that is
// dropped without wait() when its rank ends.
class [[nodiscard]] PendingCollective {
 public:
  struct State;
  explicit PendingCollective(std::unique_ptr<State> state);
  PendingCollective(PendingCollective&&) noexcept;
  PendingCollective& operator=(PendingCollective&&) noexcept;
  ~PendingCollective();
  at::Tensor wait();  // the result; called once

 private:
  friend class Communicator;
  std::unique_ptr<State> state_;
};

// The operations that a backend has; the communicator composes the others from these.
struct BackendAbilities {
  bool uneven_lists = false;    // all_gather and reduce_scatter of unequal parts, gather, scatter
  bool reduce_scatter = false;  // _reduce_scatter_base
  bool avg = false;
  bool half_sums = false;  // reduces float16 and bfloat16 without a copy in float32
  bool empty = false;      // accepts tensors without elements
  static BackendAbilities of(Backend backend);
};

class CallSink;

class Communicator {
 public:
  // `ranks` are the group's global ranks, in group order; `backend` is this rank's end of the group
  // and may be null for a group of one. `listener` may be null and must outlive the communicator.
  Communicator(std::string axis, std::vector<int64_t> ranks, int64_t group_rank,
               c10::intrusive_ptr<c10d::Backend> backend, CallListener* listener);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& axis() const { return axis_; }
  int64_t rank() const { return group_rank_; }  // position in the group
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const { return ranks_; }  // global ranks

  // Only the functions named "into" write to an argument, and only their results share memory with
  // one. Results are contiguous and carry no gradient. Every member passes the same label: calls
  // with different labels do not match. The input of an asynchronous call may not change before
  // wait() has returned. A group of one communicates nothing and records no call. Sizes that do not
  // fit throw Error(kFailed), dims that must split evenly and do not Error(kRefused).
  //
  // all_reduce keeps the shape. float16 and bfloat16 are summed in float32 and rounded once
  // (over nccl: as NCCL sums them). kAvg divides the sum and throws Error(kRefused) for integers
  // and bool. For bool, kSum and kMax are "or", kProduct and kMin are "and".
  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op, std::string_view label);
  PendingCollective all_reduce_async(const at::Tensor& input, ReduceOp op, std::string_view label);
  // Concatenates every rank's `local` along `dim` in group order. `sizes` holds each rank's size
  // along dim; empty: all are equal to local's.
  at::Tensor all_gather(const at::Tensor& local, int64_t dim, std::string_view label,
                        const std::vector<int64_t>& sizes = {});
  PendingCollective all_gather_async(const at::Tensor& local, int64_t dim, std::string_view label,
                                     const std::vector<int64_t>& sizes = {});
  // all_gather into memory of the caller, which is returned. `into` has the result's shape and
  // dtype, is contiguous and shares no memory with `local`. Nobody else may read or write it before
  // wait() has returned; the strict emulated world checks this.
  at::Tensor all_gather_into(const at::Tensor& into, const at::Tensor& local, int64_t dim,
                             std::string_view label, const std::vector<int64_t>& sizes = {});
  PendingCollective all_gather_into_async(const at::Tensor& into, const at::Tensor& local,
                                          int64_t dim, std::string_view label,
                                          const std::vector<int64_t>& sizes = {});
  // Reduces `full` and returns this rank's part along `dim`. `sizes` holds each rank's size along
  // dim; empty: size() must divide the dim.
  at::Tensor reduce_scatter(const at::Tensor& full, int64_t dim, ReduceOp op,
                            std::string_view label, const std::vector<int64_t>& sizes = {});
  PendingCollective reduce_scatter_async(const at::Tensor& full, int64_t dim, ReduceOp op,
                                         std::string_view label,
                                         const std::vector<int64_t>& sizes = {});
  // Splits `input` along dim 0 into `input_sizes`, sends part i to rank i, and concatenates the
  // received parts along dim 0; `output_sizes` are their sizes. Empty sizes: even parts.
  at::Tensor all_to_all(const at::Tensor& input, std::string_view label,
                        const std::vector<int64_t>& input_sizes = {},
                        const std::vector<int64_t>& output_sizes = {});
  PendingCollective all_to_all_async(const at::Tensor& input, std::string_view label,
                                     const std::vector<int64_t>& input_sizes = {},
                                     const std::vector<int64_t>& output_sizes = {});
  // Returns the root's tensor on every rank; `tensor` gives shape and dtype on the others.
  at::Tensor broadcast(const at::Tensor& tensor, int64_t root, std::string_view label);
  // broadcast in place: the contiguous `tensor` is read at the root and written on the others.
  void broadcast_into(const at::Tensor& tensor, int64_t root, std::string_view label);
  // Sends part i of the root's `full` along dim 0 to rank i. On other ranks `full` is undefined.
  // `local_like` has the shape and dtype of this rank's part; parts may be uneven.
  at::Tensor scatter(const at::Tensor& full, const at::Tensor& local_like, int64_t root,
                     std::string_view label, const std::vector<int64_t>& sizes = {});
  // Returns the concatenation along dim 0 at the root, an undefined tensor elsewhere.
  at::Tensor gather(const at::Tensor& local, int64_t root, std::string_view label,
                    const std::vector<int64_t>& sizes = {});
  void send(const at::Tensor& tensor, int64_t to, std::string_view label, int tag = 0);
  at::Tensor recv(const at::Tensor& like, int64_t from, std::string_view label, int tag = 0);
  void barrier(std::string_view label);

  // wait() of send_async returns when the message was taken, that of recv_async the tensor.
  PendingCollective send_async(const at::Tensor& tensor, int64_t to, std::string_view label,
                               int tag = 0);
  PendingCollective recv_async(const at::Tensor& like, int64_t from, std::string_view label,
                               int tag = 0);
  // A recv_async of a tensor like `sent` and a send_async of `sent`, in this order in the result.
  // NCCL begins them together, so that every member may call it at the same time; as two calls,
  // each would receive before it sends. Over NCCL every member of the group must take part.
  std::vector<PendingCollective> send_recv_async(const at::Tensor& sent, int64_t to, int64_t from,
                                                 std::string_view label, int tag = 0);

 private:
  friend class CommunicatorHandle;
  using StartWork = std::function<c10::intrusive_ptr<c10d::Work>()>;
  using Finish = std::function<at::Tensor()>;
  struct CallMode {
    bool asynchronous = false;
    bool private_input = false;  // the backend reads a buffer of the communicator
    at::Tensor input = {};       // the caller's tensor, which must not change before wait()
    bool private_output = true;  // nobody can read the output before wait()
  };

  Call new_call(Op op, const at::Tensor& tensor, std::string_view label) const;
  PendingCollective start(Call call, CallMode mode, const StartWork& work, Finish finish);
  PendingCollective finished(at::Tensor result) const;
  std::vector<int64_t> checked_sizes(const std::vector<int64_t>& sizes, int64_t own, Op op,
                                     std::string_view label) const;
  std::vector<int64_t> even_sizes(int64_t total, Op op, std::string_view label) const;
  void check_root(int64_t root) const;

  PendingCollective start_all_reduce(const at::Tensor& input, ReduceOp op, std::string_view label,
                                     bool asynchronous);
  // An undefined `into` stands for new memory.
  PendingCollective start_all_gather(const at::Tensor& into, const at::Tensor& local, int64_t dim,
                                     std::string_view label, const std::vector<int64_t>& sizes,
                                     bool asynchronous);
  PendingCollective gather_even(Call call, const at::Tensor& into, const at::Tensor& local,
                                bool asynchronous);
  PendingCollective gather_uneven(Call call, const at::Tensor& into, const at::Tensor& local,
                                  const std::vector<int64_t>& sizes, bool asynchronous);
  PendingCollective start_reduce_scatter(const at::Tensor& full, int64_t dim, ReduceOp op,
                                         std::string_view label, const std::vector<int64_t>& sizes,
                                         bool asynchronous);
  PendingCollective start_all_to_all(const at::Tensor& input, std::string_view label,
                                     std::vector<int64_t> input_sizes,
                                     std::vector<int64_t> output_sizes, bool asynchronous);
  PendingCollective start_message(Op op, const at::Tensor& tensor, int64_t other,
                                  std::string_view label, int tag, bool asynchronous);

  std::string axis_;
  std::vector<int64_t> ranks_;
  int64_t group_rank_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  CallListener* listener_;
  CallSink* sink_ = nullptr;  // null: the backend takes no notes
  BackendAbilities abilities_;
  std::string group_;  // "tp[2,3]"
  std::shared_ptr<const std::vector<int64_t>> shared_ranks_;
  int64_t sequence_ = 0;
  std::map<std::string, int64_t> channel_sequence_;
  std::shared_ptr<CommunicatorHandle::Target> handle_target_;
};

}  // namespace shardproof
