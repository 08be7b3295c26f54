#include "parallel/pp/stages.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "parallel/pp/tables.h"

namespace shardproof {

PipelineStages::PipelineStages(const Pipeline& pipeline, int64_t first_trained, MeshComm& comm,
                               at::ScalarType dtype, at::Device device)
    : pipeline_(pipeline),
      first_trained_(first_trained),
      pp_(comm.along("pp")),
      dtype_(dtype),
      device_(device) {}

int64_t PipelineStages::stage_of(const Action& action) const {
  return pipeline_.placement().stage_of({pp_.rank(), action.chunk});
}

bool PipelineStages::is_first(int64_t chunk) const {
  return pipeline_.placement().stage_of({pp_.rank(), chunk}) == 0;
}

bool PipelineStages::is_last(int64_t chunk) const {
  const Placement placement = pipeline_.placement();
  return placement.stage_of({pp_.rank(), chunk}) == placement.stages() - 1;
}

bool PipelineStages::has_backward(int64_t chunk) const {
  return pipeline_.placement().stage_of({pp_.rank(), chunk}) >= first_trained_;
}

void PipelineStages::begin(const std::vector<Action>& actions, bool backward,
                           std::vector<std::vector<int64_t>> stream_shapes) {
  drop();
  ++pass_;
  shapes_ = std::move(stream_shapes);
  backward_ = backward;
  posts_ = &posts_of(actions);
}

// They follow from the tables of all ranks, and are made once.
const std::vector<ActionPosts>& PipelineStages::posts_of(const std::vector<Action>& actions) {
  const int64_t microbatches = std::ssize(shapes_);
  const std::pair key{microbatches, backward_};
  const auto found = all_posts_.find(key);
  if (found != all_posts_.end()) return found->second;
  auto tables = backward_ ? pipeline_tables(pipeline_, microbatches)
                          : forward_tables(pipeline_, microbatches);
  leave_out_untrained(tables, pipeline_.placement(), first_trained_);
  const auto own = static_cast<size_t>(pp_.rank());
  SHARDPROOF_ASSERT(tables[own] == actions, "a rank makes the actions of its table");
  return all_posts_[key] = std::move(pipeline_posts(pipeline_.placement(), tables)[own]);
}

void PipelineStages::before(const Action&) {
  current_ = &posts_->at(next_++);
  for (const Post& post : current_->receives) {
    const BoundaryTensor& tensor = post.tensor;
    const at::Tensor like = at::empty(shapes_[static_cast<size_t>(tensor.microbatch)],
                                      at::TensorOptions().dtype(dtype_).device(device_));
    receives_[static_cast<size_t>(tensor.kind)].emplace(
        Key{tensor.boundary, tensor.microbatch},
        pp_.recv_async(like, post.peer, message_label(post, pass_),
                       message_tag(post, pipeline_.placement(), std::ssize(shapes_), pass_)));
  }
}

at::Tensor PipelineStages::take(Kind kind, int64_t boundary, int64_t microbatch) {
  const Key key{boundary, microbatch};
  if (!pipeline_.placement().sends_after(boundary)) {
    auto handed = handed_[static_cast<size_t>(kind)].extract(key);
    SHARDPROOF_ASSERT(!handed.empty(), "the stage before it on this rank has run");
    return handed.mapped();
  }
  auto received = receives_[static_cast<size_t>(kind)].extract(key);
  SHARDPROOF_ASSERT(!received.empty(), "a message is received before it is read");
  return received.mapped().wait();
}

void PipelineStages::give(Kind kind, int64_t boundary, int64_t microbatch,
                          const at::Tensor& tensor) {
  const at::Tensor sent = tensor.detach().contiguous();
  if (!pipeline_.placement().sends_after(boundary)) {
    handed_[static_cast<size_t>(kind)][{boundary, microbatch}] = sent;
    return;
  }
  for (const Post& post : current_->sends) {
    sends_.push_back(
        pp_.send_async(sent, post.peer, message_label(post, pass_),
                       message_tag(post, pipeline_.placement(), std::ssize(shapes_), pass_)));
  }
}

at::Tensor PipelineStages::input(const Action& forward) {
  const int64_t before = stage_of(forward) - 1;
  const at::Tensor stream = take(Kind::kActivation, before, forward.microbatch);
  return stream.detach().requires_grad_(backward_ && before >= first_trained_);
}

void PipelineStages::output(const Action& forward, const at::Tensor& stream) {
  give(Kind::kActivation, stage_of(forward), forward.microbatch, stream);
}

at::Tensor PipelineStages::output_grad(const Action& backward) {
  return take(Kind::kGradient, stage_of(backward), backward.microbatch);
}

void PipelineStages::input_grad(const Action& backward, const at::Tensor& grad) {
  give(Kind::kGradient, stage_of(backward) - 1, backward.microbatch, grad);
}

void PipelineStages::finish() {
  for (PendingCollective& send : sends_) send.wait();
  sends_.clear();
}

void PipelineStages::drop() {
  for (auto& receives : receives_) receives.clear();
  for (auto& handed : handed_) handed.clear();
  sends_.clear();
  posts_ = nullptr;
  next_ = 0;
}

at::Tensor PipelineStages::from_last(const at::Tensor& value, std::string_view label) {
  return pp_.all_reduce(value, ReduceOp::kSum, label);
}

}  // namespace shardproof
