#include "parallel/pp/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "parallel/pp/simulate.h"

namespace shardproof {
namespace {

using Kind = Action::Kind;

class Posts {
 public:
  Posts(const Placement& placement, const std::vector<std::vector<Action>>& tables,
        BoundaryShapes shapes)
      : placement_(placement), tables_(tables), shapes_(shapes) {}

  std::vector<std::vector<ActionPosts>> all() {
    std::vector<std::vector<ActionPosts>> posts;
    for (int64_t rank = 0; rank < placement_.ranks; ++rank) {
      auto& of_rank = posts.emplace_back();
      for (const Action& action : table(rank)) {
        ActionPosts& each = of_rank.emplace_back();
        if (const auto tensor = sent_by(rank, action)) {
          append(each.sends, *tensor, receiver_of(*tensor));
          sends_[{rank, receiver_of(*tensor)}].push_back(*tensor);
        }
      }
    }
    for (int64_t rank = 0; rank < placement_.ranks; ++rank) {
      for (size_t i = 0; i < table(rank).size(); ++i) {
        receive(rank, table(rank)[i], posts[static_cast<size_t>(rank)][i]);
      }
    }
    for (const auto& [ends, sends] : sends_) {
      SHARDPROOF_ASSERT(received_[ends] == sends.size(),
                        fmt::format("rank {} receives {} of {} messages of rank {}", ends.second,
                                    received_[ends], sends.size(), ends.first));
    }
    return posts;
  }

 private:
  const std::vector<Action>& table(int64_t rank) const {
    return tables_[static_cast<size_t>(rank)];
  }

  int64_t receiver_of(const BoundaryTensor& tensor) const {
    const bool forward = tensor.kind == BoundaryTensor::Kind::kActivation;
    return placement_.place_of(tensor.boundary + (forward ? 1 : 0)).rank;
  }
  int64_t sender_of(const BoundaryTensor& tensor) const {
    const bool forward = tensor.kind == BoundaryTensor::Kind::kActivation;
    return placement_.place_of(tensor.boundary + (forward ? 0 : 1)).rank;
  }

  bool has_backward(int64_t stage, int64_t microbatch) const {
    const StagePlace place = placement_.place_of(stage);
    const Action wanted{Kind::kBackward, microbatch, place.chunk};
    const auto& actions = table(place.rank);
    return std::find(actions.begin(), actions.end(), wanted) != actions.end();
  }

  std::optional<BoundaryTensor> sent_by(int64_t rank, const Action& action) const {
    const int64_t stage = placement_.stage_of({rank, action.chunk});
    if (action.kind == Kind::kForward && placement_.sends_after(stage)) {
      return BoundaryTensor{BoundaryTensor::Kind::kActivation, stage, action.microbatch};
    }
    if (action.kind == Kind::kBackward && stage > 0 && placement_.sends_after(stage - 1) &&
        has_backward(stage - 1, action.microbatch)) {
      return BoundaryTensor{BoundaryTensor::Kind::kGradient, stage - 1, action.microbatch};
    }
    return std::nullopt;
  }

  std::optional<BoundaryTensor> read_by(int64_t rank, const Action& action) const {
    const int64_t stage = placement_.stage_of({rank, action.chunk});
    if (action.kind == Kind::kForward && stage > 0 && placement_.sends_after(stage - 1)) {
      return BoundaryTensor{BoundaryTensor::Kind::kActivation, stage - 1, action.microbatch};
    }
    if (action.kind == Kind::kBackward && placement_.sends_after(stage)) {
      return BoundaryTensor{BoundaryTensor::Kind::kGradient, stage, action.microbatch};
    }
    return std::nullopt;
  }

  void append(std::vector<Post>& posts, const BoundaryTensor& tensor, int64_t peer) const {
    if (shapes_ == BoundaryShapes::kExchanged) posts.push_back({tensor, peer, true});
    posts.push_back({tensor, peer, false});
  }

  // All that the peer sends up to what the action reads.
  void receive(int64_t rank, const Action& action, ActionPosts& posts) {
    posts.reads = read_by(rank, action);
    if (!posts.reads) return;
    const int64_t peer = sender_of(*posts.reads);
    const auto& sends = sends_[{peer, rank}];
    const auto wanted = std::find(sends.begin(), sends.end(), *posts.reads);
    SHARDPROOF_ASSERT(wanted != sends.end(), fmt::format("rank {} sends nothing for {} on rank {}",
                                                         peer, action_text(action), rank));
    size_t& received = received_[{peer, rank}];
    for (; received <= static_cast<size_t>(wanted - sends.begin()); ++received) {
      append(posts.receives, sends[received], peer);
    }
  }

  const Placement& placement_;
  const std::vector<std::vector<Action>>& tables_;
  const BoundaryShapes shapes_;
  // By sender and receiver: what is sent, in order, and how much of it has its receive.
  std::map<std::pair<int64_t, int64_t>, std::vector<BoundaryTensor>> sends_;
  std::map<std::pair<int64_t, int64_t>, size_t> received_;
};

}  // namespace

void leave_out_untrained(std::vector<std::vector<Action>>& tables, const Placement& placement,
                         int64_t first_trained) {
  for (int64_t rank = 0; rank < std::ssize(tables); ++rank) {
    std::erase_if(tables[static_cast<size_t>(rank)], [&](const Action& action) {
      return action.kind != Kind::kForward &&
             placement.stage_of({rank, action.chunk}) < first_trained;
    });
  }
}

std::vector<std::vector<ActionPosts>> pipeline_posts(const Placement& placement,
                                                     const std::vector<std::vector<Action>>& tables,
                                                     BoundaryShapes shapes) {
  const auto blocked = simulate(placement, tables, {}).blocked;
  SHARDPROOF_ASSERT(blocked.empty(),
                    "the tables of the pipeline cannot be run: " + blocked_text(blocked));
  return Posts(placement, tables, shapes).all();
}

int message_tag(const Post& post, const Placement& placement, int64_t microbatches, int64_t pass) {
  const auto& [kind, boundary, microbatch] = post.tensor;
  const int64_t of_pass = 4 * placement.stages() * microbatches;
  const int64_t passes = std::numeric_limits<int>::max() / of_pass;
  SHARDPROOF_ASSERT(passes > 1, fmt::format("{} stages and {} microbatches are too many for tags",
                                            placement.stages(), microbatches));
  const int64_t number = (microbatch * placement.stages() + boundary) * 4 +
                         static_cast<int64_t>(kind) * 2 + (post.sizes ? 1 : 0);
  return static_cast<int>(pass % passes * of_pass + number);
}

std::string message_label(const Post& post, int64_t pass) {
  const auto& [kind, boundary, microbatch] = post.tensor;
  const bool forward = kind == BoundaryTensor::Kind::kActivation;
  return fmt::format("pp {}{} of microbatch {} from stage {} to {}, pass {}",
                     post.sizes ? "sizes of " : "", forward ? "activation" : "gradient", microbatch,
                     forward ? boundary : boundary + 1, forward ? boundary + 1 : boundary, pass);
}

}  // namespace shardproof
