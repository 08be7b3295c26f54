// One group of ranks that talk to each other: tensors in, tensors out, every call with a label.
// A thin layer over c10d::Backend (emulated, gloo, nccl). It makes tensors contiguous, handles
// uneven sizes and zero-sized tensors, and tells a CallListener about every call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/communicator_handle.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace shardproof {

enum class ReduceOp { kSum, kAvg, kMax, kMin, kProduct };
const char* reduce_op_name(ReduceOp op);

// Hears of every call of the communicators that were given it, on the rank's own thread.
class CallListener {
 public:
  virtual ~CallListener() = default;
  virtual void before_call(const Call& call) = 0;
  virtual void before_wait(const Call& call) {}      // asynchronous calls only
  virtual void after_call(const Call& call) = 0;     // synchronous calls, or at wait()
  virtual void never_waited(const Call& call) = 0;   // a pending call that was dropped
};

// A collective under way. wait() gives the result. Dropped without wait() it tells the listener;
// the destructor never waits.
class [[nodiscard]] PendingCollective {
 public:
  struct State;
  explicit PendingCollective(std::unique_ptr<State> state);
  PendingCollective(PendingCollective&&) noexcept;
  PendingCollective& operator=(PendingCollective&&) noexcept;
  ~PendingCollective();
  at::Tensor wait();  // once

 private:
  std::unique_ptr<State> state_;
};

// What a backend does by itself; the communicator composes the rest from what there is.
struct BackendAbilities {
  bool uneven_lists = false;    // allgather and reduce_scatter of unequal parts, gather, scatter
  bool reduce_scatter = false;  // _reduce_scatter_base
  bool avg = false;
  bool half_sums = false;       // reduces float16 and bfloat16, in float32
  bool empty = false;           // takes tensors without elements
  static BackendAbilities of(const std::string& backend_name);  // emulated, gloo, nccl
};

class CallSink;

class Communicator {
 public:
  // `ranks`: global ranks of the group in group order; `backend` is this rank's end of it. Null for
  // a group of one, which then communicates nothing: no call is recorded, a result is a copy.
  // `listener` may be null and must outlive the communicator.
  Communicator(std::string axis, std::vector<int64_t> ranks, int64_t group_rank,
               c10::intrusive_ptr<c10d::Backend> backend, CallListener* listener);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& axis() const { return axis_; }
  int64_t rank() const { return group_rank_; }                       // within the group
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const { return ranks_; }       // global ranks

  // None of these writes to its input, and no result shares memory with an input: a result may be
  // written in place. Results are contiguous and carry no gradient. A group of one communicates
  // nothing: no call is recorded and the result is a copy.
  // Every member gives the same label: it is part of what makes two calls the same call.
  // The input of an asynchronous call stays as it is until wait() has returned, whether or not this
  // version copies it.
  //
  // all_reduce: same shape out. float16 and bfloat16 are summed in float32 and rounded once (nccl:
  // as NCCL does). kAvg divides the sum; kAvg of integers and bool is refused. bool: kSum and kMax
  // are "or", kProduct and kMin are "and".
  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op, std::string_view label);
  PendingCollective all_reduce_async(const at::Tensor& input, ReduceOp op, std::string_view label);
  // Concatenates every rank's `local` along `dim` in group order. `sizes`: each rank's size along
  // dim when they differ (empty: all equal to local's).
  at::Tensor all_gather(const at::Tensor& local, int64_t dim, std::string_view label,
                        const std::vector<int64_t>& sizes = {});
  PendingCollective all_gather_async(const at::Tensor& local, int64_t dim, std::string_view label,
                                     const std::vector<int64_t>& sizes = {});
  // The same into memory of the caller's, which is the result: `into` has the result's shape and
  // dtype, is contiguous and shares no memory with `local`. Nobody else reads or writes it before
  // wait() has returned; the strict emulated world watches that.
  at::Tensor all_gather_into(const at::Tensor& into, const at::Tensor& local, int64_t dim,
                             std::string_view label, const std::vector<int64_t>& sizes = {});
  PendingCollective all_gather_into_async(const at::Tensor& into, const at::Tensor& local,
                                          int64_t dim, std::string_view label,
                                          const std::vector<int64_t>& sizes = {});
  // Reduces `full` and gives this rank its part along `dim`. `sizes` as in all_gather; without them
  // the dim must divide by size().
  at::Tensor reduce_scatter(const at::Tensor& full, int64_t dim, ReduceOp op,
                            std::string_view label, const std::vector<int64_t>& sizes = {});
  PendingCollective reduce_scatter_async(const at::Tensor& full, int64_t dim, ReduceOp op,
                                         std::string_view label,
                                         const std::vector<int64_t>& sizes = {});
  // Splits `input` along dim 0 into `input_sizes` (empty: even), sends part i to rank i, gives what
  // arrived concatenated along dim 0; `output_sizes` say how much comes from each (empty: even).
  at::Tensor all_to_all(const at::Tensor& input, std::string_view label,
                        const std::vector<int64_t>& input_sizes = {},
                        const std::vector<int64_t>& output_sizes = {});
  PendingCollective all_to_all_async(const at::Tensor& input, std::string_view label,
                                     const std::vector<int64_t>& input_sizes = {},
                                     const std::vector<int64_t>& output_sizes = {});
  // The root's tensor on every rank; `tensor` gives shape and dtype on the others.
  at::Tensor broadcast(const at::Tensor& tensor, int64_t root, std::string_view label);
  // The same in place: `tensor`, dense, is read at the root and written everywhere else.
  void broadcast_into(const at::Tensor& tensor, int64_t root, std::string_view label);
  // Part i of the root's `full` along dim 0 to rank i. On other ranks `full` is undefined and
  // `local_like` gives shape and dtype. Parts may be uneven: local_like's shape counts.
  at::Tensor scatter(const at::Tensor& full, const at::Tensor& local_like, int64_t root,
                     std::string_view label, const std::vector<int64_t>& sizes = {});
  // The concatenation along dim 0 at the root; undefined elsewhere.
  at::Tensor gather(const at::Tensor& local, int64_t root, std::string_view label,
                    const std::vector<int64_t>& sizes = {});
  void send(const at::Tensor& tensor, int64_t to, std::string_view label, int tag = 0);
  at::Tensor recv(const at::Tensor& like, int64_t from, std::string_view label, int tag = 0);
  void barrier(std::string_view label);

  // Asynchronous: send returns when the message has been taken, recv gives the tensor at wait().
  PendingCollective send_async(const at::Tensor& tensor, int64_t to, std::string_view label,
                               int tag = 0);
  PendingCollective recv_async(const at::Tensor& like, int64_t from, std::string_view label,
                               int tag = 0);

 private:
  friend class CommunicatorHandle;
  using StartWork = std::function<c10::intrusive_ptr<c10d::Work>()>;
  using Finish = std::function<at::Tensor()>;
  struct CallMode {
    bool asynchronous = false;
    bool private_input = false;  // the buffer that the backend reads is the communicator's own
    at::Tensor input = {};       // the caller's own, which must not change before wait()
    bool private_output = true;  // nobody else can see the output before wait()
  };

  Call new_call(const char* op, const at::Tensor& tensor, std::string_view label) const;
  PendingCollective start(Call call, CallMode mode, const StartWork& work, Finish finish);
  PendingCollective finished(at::Tensor result) const;
  std::vector<int64_t> checked_sizes(const std::vector<int64_t>& sizes, int64_t own, const char* op,
                                     std::string_view label) const;
  std::vector<int64_t> even_sizes(int64_t total, const char* op, std::string_view label) const;
  void check_root(int64_t root) const;

  PendingCollective start_all_reduce(const at::Tensor& input, ReduceOp op, std::string_view label,
                                     bool asynchronous);
  // `into` may be undefined: memory of the call's own.
  PendingCollective start_all_gather(const at::Tensor& into, const at::Tensor& local, int64_t dim,
                                     std::string_view label, const std::vector<int64_t>& sizes,
                                     bool asynchronous);
  PendingCollective gather_even(Call call, const at::Tensor& into,
                                const at::Tensor& local, bool asynchronous);
  PendingCollective gather_uneven(Call call, const at::Tensor& into,
                                  const at::Tensor& local, const std::vector<int64_t>& sizes,
                                  bool asynchronous);
  PendingCollective start_reduce_scatter(const at::Tensor& full, int64_t dim, ReduceOp op,
                                         std::string_view label, const std::vector<int64_t>& sizes,
                                         bool asynchronous);
  PendingCollective start_all_to_all(const at::Tensor& input, std::string_view label,
                                     std::vector<int64_t> input_sizes,
                                     std::vector<int64_t> output_sizes, bool asynchronous);
  PendingCollective start_message(const char* op, const at::Tensor& tensor, int64_t other,
                                  std::string_view label, int tag, bool asynchronous);

  std::string axis_;
  std::vector<int64_t> ranks_;
  int64_t group_rank_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  CallListener* listener_;
  CallSink* sink_ = nullptr;  // the backend's side channel, if it has one
  BackendAbilities abilities_;
  std::string group_;         // "tp[2,3]"
  std::shared_ptr<const std::vector<int64_t>> shared_ranks_;
  int64_t sequence_ = 0;
  std::map<std::string, int64_t> channel_sequence_;
  std::shared_ptr<CommunicatorHandle::Target> handle_target_;
};

}  // namespace shardproof
