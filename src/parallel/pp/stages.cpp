#include "parallel/pp/stages.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "parallel/pp/tables.h"
#include "tensor/int64_list.h"

namespace shardproof {

PipelineStages::PipelineStages(const Pipeline& pipeline, int64_t first_trained,
                               BoundaryShapes shapes, std::vector<Boundary> boundaries,
                               MeshComm& comm, at::ScalarType dtype, at::Device device)
    : pipeline_(pipeline),
      first_trained_(first_trained),
      boundary_shapes_(shapes),
      boundaries_(std::move(boundaries)),
      pp_(comm.along("pp")),
      dtype_(dtype),
      device_(device),
      sent_(static_cast<size_t>(pp_.size()), 0),
      received_(sent_) {}

int64_t PipelineStages::stage_of(int64_t chunk) const {
  return pipeline_.placement().stage_of({pp_.rank(), chunk});
}

bool PipelineStages::is_first(int64_t chunk) const { return stage_of(chunk) == 0; }

bool PipelineStages::is_last(int64_t chunk) const {
  return stage_of(chunk) == pipeline_.placement().stages() - 1;
}

const Boundary& PipelineStages::entry(int64_t chunk) const {
  return boundaries_.at(static_cast<size_t>(stage_of(chunk) - 1));
}

const Boundary& PipelineStages::exit(int64_t chunk) const {
  return boundaries_.at(static_cast<size_t>(stage_of(chunk)));
}

bool PipelineStages::has_backward(int64_t chunk) const { return stage_of(chunk) >= first_trained_; }

void PipelineStages::begin(const std::vector<Action>& actions, bool backward,
                           std::vector<std::vector<int64_t>> stream_shapes) {
  settle();
  sent_.assign(static_cast<size_t>(pp_.size()), 0);
  received_ = sent_;
  next_ = 0;
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
  return all_posts_[key] =
             std::move(pipeline_posts(pipeline_.placement(), tables, boundary_shapes_)[own]);
}

void PipelineStages::before(const Action&) {
  current_ = &posts_->at(next_++);
  for (const Post& post : current_->receives) {
    const BoundaryTensor& tensor = post.tensor;
    if (post.sizes) {
      exchanged_ = int64_list(receive(post).wait());
      continue;
    }
    receives_[static_cast<size_t>(tensor.kind)].emplace(Key{tensor.boundary, tensor.microbatch},
                                                        receive(post));
  }
}

at::Tensor PipelineStages::sizes_message(at::IntArrayRef sizes) const {
  return at::tensor(sizes, at::kLong).to(device_);
}

std::vector<int64_t> PipelineStages::shape_of(const BoundaryTensor& tensor) const {
  std::vector<int64_t> shape = shapes_[static_cast<size_t>(tensor.microbatch)];
  if (backward_) shape[1] *= boundaries_[static_cast<size_t>(tensor.boundary)].streams;
  return shape;
}

PendingCollective PipelineStages::receive(const Post& post) {
  const std::vector<int64_t> known = shape_of(post.tensor);
  const at::Tensor like =
      post.sizes ? at::empty_like(sizes_message(known))
                 : at::empty(exchanged_.empty() ? known : std::exchange(exchanged_, {}),
                             at::TensorOptions().dtype(dtype_).device(device_));
  ++received_[static_cast<size_t>(post.peer)];
  return pp_.recv_async(like, post.peer, message_label(post, pass_),
                        message_tag(post, pipeline_.placement(), std::ssize(shapes_), pass_));
}

void PipelineStages::send(const Post& post, const at::Tensor& tensor) {
  ++sent_[static_cast<size_t>(post.peer)];
  sends_.push_back(
      pp_.send_async(tensor, post.peer, message_label(post, pass_),
                     message_tag(post, pipeline_.placement(), std::ssize(shapes_), pass_)));
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
    send(post, post.sizes ? sizes_message(sent.sizes()) : sent);
  }
}

at::Tensor PipelineStages::input(const Action& forward) {
  const int64_t before = stage_of(forward.chunk) - 1;
  const at::Tensor stream = take(Kind::kActivation, before, forward.microbatch);
  return stream.detach().requires_grad_(backward_ && before >= first_trained_);
}

void PipelineStages::output(const Action& forward, const at::Tensor& stream) {
  give(Kind::kActivation, stage_of(forward.chunk), forward.microbatch, stream);
}

at::Tensor PipelineStages::output_grad(const Action& backward) {
  return take(Kind::kGradient, stage_of(backward.chunk), backward.microbatch);
}

void PipelineStages::input_grad(const Action& backward, const at::Tensor& grad) {
  give(Kind::kGradient, stage_of(backward.chunk) - 1, backward.microbatch, grad);
}

void PipelineStages::finish() {
  for (PendingCollective& send : sends_) send.wait();
  sends_.clear();
}

void PipelineStages::drop() {
  dropped_ = true;
  exchanged_.clear();
  for (auto& handed : handed_) handed.clear();
}

void PipelineStages::settle() {
  if (!std::exchange(dropped_, false)) return;
  const int64_t ranks = pp_.size(), own = pp_.rank();
  std::vector<int64_t> posted = {pass_};
  posted.insert(posted.end(), sent_.begin(), sent_.end());
  posted.insert(posted.end(), received_.begin(), received_.end());
  const at::Tensor all = pp_.all_gather(at::tensor(posted, at::kLong).unsqueeze(0).to(device_), 0,
                                        "pp messages of a dropped pass")
                             .cpu();
  if (!all.select(1, 0).eq(pass_).all().item<bool>()) {
    throw_failed(fmt::format("a step threw on some ranks of pp before pass {} and on others "
                             "in it, so that its messages cannot be completed",
                             all.select(1, 0).max().item<int64_t>()),
                 "begin again from a saved state");
  }
  const auto of_rank = [&](int64_t rank, int64_t peer, bool receives) {
    return all[rank][1 + (receives ? ranks : 0) + peer].item<int64_t>();
  };
  std::vector<PendingCollective> dropped;
  std::vector<int64_t> sent(static_cast<size_t>(ranks), 0), received = sent;
  for (const ActionPosts& action : posts_ == nullptr ? std::vector<ActionPosts>() : *posts_) {
    for (const Post& post : action.receives) {
      const int64_t number = received[static_cast<size_t>(post.peer)]++;
      const bool open = number >= of_rank(own, post.peer, true);
      if (open && number < of_rank(post.peer, own, false)) dropped.push_back(receive(post));
    }
    for (const Post& post : action.sends) {
      const int64_t number = sent[static_cast<size_t>(post.peer)]++;
      const bool open = number >= of_rank(own, post.peer, false);
      if (!open || number >= of_rank(post.peer, own, true)) continue;
      const std::vector<int64_t> sizes = shape_of(post.tensor);
      send(post, post.sizes ? sizes_message(sizes)
                            : at::zeros(sizes, at::TensorOptions().dtype(dtype_).device(device_)));
    }
  }
  for (auto& receives : receives_) {
    for (auto& [key, receive] : receives) receive.wait();
    receives.clear();
  }
  for (PendingCollective& receive : dropped) receive.wait();
  finish();
}

at::Tensor PipelineStages::from_last(const at::Tensor& value, std::string_view label) {
  return pp_.all_reduce(value, ReduceOp::kSum, label);
}

}  // namespace shardproof
