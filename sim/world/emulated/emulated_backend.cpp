// Turns c10d's calls into arrivals at meetings of the emulated world.
#include "sim/world/emulated/emulated_backend.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "comm/call_sink.h"

namespace shardproof::sim::world {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAvg;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    default:
      throw_refused("the emulated world has no bitwise or scaled reductions",
                    "reduce by sum, avg, max, min or product");
  }
}

// Bumps version counters, so that autograd notices that a saved tensor was overwritten.
void note_written(const Parts& parts) {
  for (const at::Tensor& tensor : parts.tensors()) {
    if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

// A call that a rank has made.
struct PostedCall {
  std::shared_ptr<EmulatedWorld::Impl> world;
  std::shared_ptr<Meeting> meeting;
  std::optional<Call> line;  // of an asynchronous call
  int64_t rank;
  size_t position;
  int64_t generation;
  Parts seen;    // the caller's memory, read after wait()
  Parts staged;  // written by the world if the caller could read `seen` too early; empty: the world
                 // writes to `seen`
  std::optional<InFlight::Handle> in_flight;  // none: synchronous, or the world is not strict
  std::optional<size_t> timed_call;           // none: the clock did not run
};

class EmulatedWork : public c10d::Work {
 public:
  explicit EmulatedWork(PostedCall call) : call_(std::move(call)) {}

  bool isCompleted() override {
    if (waited_) return true;
    const ClockPause pause(&rank().clock);
    return call_.world->is_done(call_.meeting, call_.rank);
  }
  bool isSuccess() const override { return waited_; }
  void synchronize() override { wait(kNoTimeout); }

  bool wait(std::chrono::milliseconds) override {
    if (waited_) return true;
    call_.world->check_generation(call_.generation);
    RankClock& clock = rank().clock;
    const ClockPause pause(&clock);
    if (call_.timed_call) clock.blocks(*call_.timed_call);
    const Member own = call_.world->wait(call_.meeting, std::move(call_.line), call_.rank,
                                         call_.position, call_.generation);
    waited_ = true;
    if (call_.timed_call) clock.released(*call_.timed_call, call_.meeting->transfer);
    if (call_.in_flight) check_untouched();
    if (call_.staged.count() != 0) {
      const at::NoGradGuard no_grad;
      call_.seen.copy_from(call_.staged);  // bumps the version counter
    } else {
      note_written(call_.seen);
    }
    call_.meeting.reset();
    call_.staged = Parts();
    return true;
  }

 private:
  RankState& rank() const { return *call_.world->ranks[static_cast<size_t>(call_.rank)]; }

  void check_untouched() {
    auto finding = rank().in_flight.finish(*call_.in_flight);
    call_.in_flight.reset();
    if (finding) call_.world->stop(call_.rank, std::move(*finding));
  }

  PostedCall call_;
  bool waited_ = false;
};

class EmulatedBackend : public c10d::Backend, public CallSink {
 public:
  EmulatedBackend(std::shared_ptr<EmulatedWorld::Impl> world, std::shared_ptr<EmulatedGroup> group,
                  int64_t group_rank, int64_t rank, int64_t generation)
      : Backend(static_cast<int>(group_rank), static_cast<int>(group->ranks->size())),
        world_(std::move(world)),
        group_(std::move(group)),
        world_rank_(rank),
        generation_(generation) {}

  const std::string getBackendName() const override { return "emulated"; }
  void next_call(CallNotes notes) override { notes_ = std::move(notes); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return post({.op = Op::kAllReduce, .reduce = from_c10d(options.reduceOp)}, both(tensors), true);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return post({.op = Op::kBroadcast, .root = options.rootRank}, both(tensors), true);
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions&) override {
    return post({.op = Op::kAllGather}, {Parts::list(inputs), Parts::list(only(outputs))});
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    return post({.op = Op::kAllGather}, {Parts::list({input}), Parts::even(output, size_)});
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return post({.op = Op::kReduceScatter, .reduce = from_c10d(options.reduceOp)},
                {Parts::list(only(inputs)), Parts::list(outputs)});
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return post({.op = Op::kReduceScatter, .reduce = from_c10d(options.reduceOp)},
                {Parts::even(input, size_), Parts::list({output})});
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions&) override {
    return post({.op = Op::kAllToAll, .split_sizes = input_rows, .output_sizes = output_rows},
                {divided(input, input_rows), divided(output, output_rows)});
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    return post({.op = Op::kAllToAll}, {Parts::list(inputs), Parts::list(outputs)});
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    const bool is_root = options.rootRank == rank_;
    return post({.op = Op::kGather, .root = options.rootRank},
                {Parts::list(inputs), Parts::list(is_root ? only(outputs) : Tensors{})});
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    const bool is_root = options.rootRank == rank_;
    return post({.op = Op::kScatter, .root = options.rootRank},
                {Parts::list(is_root ? only(inputs) : Tensors{}), Parts::list(outputs)});
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return post({.op = Op::kSend, .root = to, .tag = tag}, {Parts::list(tensors), Parts()});
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return post({.op = Op::kRecv, .root = from, .tag = tag}, {Parts(), Parts::list(tensors)});
  }

  WorkPtr barrier(const c10d::BarrierOptions&) override { return post({.op = Op::kBarrier}, {}); }

 private:
  static Member both(const Tensors& tensors) {
    return {Parts::list(tensors), Parts::list(tensors)};
  }

  static const Tensors& only(const std::vector<Tensors>& lists) {
    SHARDPROOF_ASSERT(lists.size() == 1, "one tensor list per rank");
    return lists[0];
  }

  Parts divided(const at::Tensor& tensor, const std::vector<int64_t>& rows) const {
    return rows.empty() ? Parts::even(tensor, size_) : Parts::rows(tensor, rows);
  }

  // Describes a call without notes by its arguments.
  Call described(Call call, const Member& tensors) const {
    call.rank = world_rank_;
    call.group = group_->name;
    call.group_rank = rank_;
    call.group_ranks = group_->ranks;
    call.asynchronous = true;
    const bool sends = tensors.input.count() != 0 && call.op != Op::kScatter;
    const Parts& shown = sends ? tensors.input : tensors.output;
    if (shown.count() != 0) {
      call.shape = shown.tensors()[0].sizes().vec();
      call.strides = shown.tensors()[0].strides().vec();
      call.dtype = c10::toString(shown.tensors()[0].scalar_type());
    }
    return call;
  }

  EmulatedGroup::Channel channel_of(const Call& call) const {
    if (call.op == Op::kSend) return {rank_, call.root, call.tag};
    if (call.op == Op::kRecv) return {call.root, rank_, call.tag};
    return {-1, -1, 0};
  }

  std::shared_ptr<const std::vector<int64_t>> members_for(
      const EmulatedGroup::Channel& channel) const {
    const auto [from, to, tag] = channel;
    if (from < 0) return group_->ranks;
    const auto& ranks = *group_->ranks;
    SHARDPROOF_ASSERT(from != to && from < size_ && to >= 0 && to < size_,
                      "a message has two ends");
    return std::make_shared<const std::vector<int64_t>>(std::initializer_list<int64_t>{
        ranks[static_cast<size_t>(from)], ranks[static_cast<size_t>(to)]});
  }

  // Copies inputs that the caller could change before the peers read them, and replaces outputs
  // that the caller could read before wait(). Returns the replacements; empty: there are none.
  static Parts stage(Member& tensors, bool in_place, const CallNotes& notes) {
    if (!notes.call.asynchronous) return {};
    if (in_place) {
      if (notes.private_input && notes.private_output) return {};
      tensors.input = tensors.input.clone();
      tensors.output = tensors.input;
      return tensors.output;
    }
    if (!notes.private_input) tensors.input = tensors.input.clone();
    if (notes.private_output || tensors.output.count() == 0) return {};
    tensors.output = tensors.output.like();
    return tensors.output;
  }

  // The memory that nobody may touch before wait(): with notes, the caller's own input.
  static InFlight::Buffers buffers_of(const Member& tensors, bool in_place, const CallNotes& notes,
                                      bool noted) {
    InFlight::Buffers buffers;
    if (!noted) {
      buffers.inputs = in_place ? Tensors() : tensors.input.tensors();
    } else if (notes.input.defined()) {
      buffers.inputs = {notes.input};
      buffers.copied = notes.private_input;
    }
    if (!notes.private_output) buffers.outputs = tensors.output.tensors();
    return buffers;
  }

  // `in_place`: the output is the input.
  WorkPtr post(Call made, Member tensors, bool in_place = false) {
    world_->check_generation(generation_);
    RankState& rank = *world_->ranks[static_cast<size_t>(world_rank_)];
    const ClockPause pause(&rank.clock);
    const ReduceOp reduce = made.reduce.value_or(ReduceOp::kSum);
    const bool noted = notes_.has_value();
    CallNotes notes =
        noted ? std::move(*notes_) : CallNotes{.call = described(std::move(made), tensors)};
    notes_.reset();
    Call& call = notes.call;
    const EmulatedGroup::Channel channel = channel_of(call);
    call.sequence = call_count_[channel]++;
    const InFlight::Buffers buffers = buffers_of(tensors, in_place, notes, noted);
    const bool strict = world_->spec.strict;
    if (strict) {
      if (auto clash = rank.in_flight.clash(call, buffers)) {
        world_->stop(world_rank_, std::move(*clash));
      }
    }
    const Parts seen = tensors.output;
    // A schedule shows what a caller sees that uses its buffers before wait(). New memory has the
    // same values in each run of one schedule.
    const bool exposed = world_->has_schedule() && !strict;
    if (exposed && call.asynchronous && !in_place && notes.private_output) {
      for (const at::Tensor& output : seen.tensors()) poison(output);
    }
    const Parts staged = exposed ? Parts() : stage(tensors, in_place, notes);
    std::optional<InFlight::Handle> in_flight;
    if (strict && call.asynchronous) in_flight = rank.in_flight.start(call, buffers);
    const auto own = is_message(call.op) ? (call.op == Op::kRecv ? 1 : 0) : rank_;
    Arrival arrival{.line = call,
                    .tensors = std::move(tensors),
                    .reduce = reduce,
                    .position = static_cast<size_t>(own)};
    const std::optional<size_t> timed_call = note_time(rank.clock, arrival);
    auto meeting =
        world_->arrive(*group_, channel, members_for(channel), std::move(arrival), generation_);
    std::optional<Call> line;
    if (call.asynchronous) line = call;
    auto work = c10::make_intrusive<EmulatedWork>(
        PostedCall{world_, std::move(meeting), std::move(line), world_rank_,
                   static_cast<size_t>(own), generation_, seen, staged, in_flight, timed_call});
    if (!call.asynchronous) work->wait(kNoTimeout);
    return work;
  }

  static std::optional<size_t> note_time(RankClock& clock, Arrival& arrival) {
    if (!clock.running()) return std::nullopt;
    arrival.issued_us = clock.now_us();
    const Call& line = arrival.line;
    std::string channel = line.group;
    if (is_message(line.op)) {
      channel += " " + op_text(line) + " " + std::to_string(line.tag);
    }
    return clock.issued(describe(line), std::move(channel));
  }

  std::shared_ptr<EmulatedWorld::Impl> world_;
  std::shared_ptr<EmulatedGroup> group_;
  int64_t world_rank_;
  int64_t generation_;
  std::optional<CallNotes> notes_;
  std::map<EmulatedGroup::Channel, int64_t> call_count_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_emulated_backend(std::shared_ptr<EmulatedWorld::Impl> world,
                                                        std::shared_ptr<EmulatedGroup> group,
                                                        int64_t rank, int64_t generation) {
  const auto& ranks = *group->ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  SHARDPROOF_ASSERT(found != ranks.end(), "a rank joins only its own groups");
  const int64_t group_rank = found - ranks.begin();
  return c10::make_intrusive<EmulatedBackend>(std::move(world), std::move(group), group_rank, rank,
                                              generation);
}

}  // namespace shardproof::sim::world
