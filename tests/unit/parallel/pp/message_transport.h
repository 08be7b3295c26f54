// A transport without tags on paper: from one rank to another, the first send pairs with the first
// receive that is posted, the second with the second, whatever they are.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/pp/messages.h"

namespace shardproof::tests {

struct TransportResult {
  bool finished = true;  // false: ranks wait for one another
  int64_t messages = 0;
  std::vector<std::string> wrong;  // receives that got another message
};

class MessageTransport {
 public:
  // kBlocking: a send ends when its receive is posted.
  enum class Sends { kFree, kBlocking };

  TransportResult play(const std::vector<std::vector<ActionPosts>>& posts, Sends mode) {
    for (const auto& actions : posts) steps_.push_back(steps_of(actions));
    std::vector<size_t> next(posts.size(), 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < posts.size(); ++rank) {
        while (next[rank] < steps_[rank].size() &&
               take(static_cast<int64_t>(rank), steps_[rank][next[rank]], mode)) {
          ++next[rank];
          progress = true;
        }
      }
    }
    TransportResult result;
    for (size_t rank = 0; rank < posts.size(); ++rank) {
      if (next[rank] < steps_[rank].size()) result.finished = false;
    }
    for (const auto& [ends, sends] : sends_) {
      const auto& receives = receives_[ends];
      result.messages += std::ssize(sends);
      if (sends.size() != receives.size())
        result.wrong.push_back("a message without its other end");
      for (size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
        if (sends[i].tensor == receives[i].tensor && sends[i].sizes == receives[i].sizes) continue;
        result.wrong.push_back(fmt::format("rank {} receives {} as {}", ends.second,
                                           message_label(sends[i], 0),
                                           message_label(receives[i], 0)));
      }
    }
    return result;
  }

 private:
  using Ends = std::pair<int64_t, int64_t>;  // sender, receiver
  struct Step {
    enum class Kind { kReceive, kWait, kSend };
    Kind kind;
    Post post;
  };

  static std::vector<Step> steps_of(const std::vector<ActionPosts>& actions) {
    std::vector<Step> steps;
    for (const ActionPosts& action : actions) {
      for (const Post& post : action.receives) {
        steps.push_back({Step::Kind::kReceive, post});
        if (post.sizes) steps.push_back({Step::Kind::kWait, post});
      }
      if (action.reads) steps.push_back({Step::Kind::kWait, receive_of(steps, *action.reads)});
      for (const Post& post : action.sends) steps.push_back({Step::Kind::kSend, post});
    }
    return steps;
  }

  // Without one, the peer is -1 and the step waits forever.
  static Post receive_of(const std::vector<Step>& steps, const BoundaryTensor& tensor) {
    for (const Step& step : steps) {
      const bool receives = step.kind == Step::Kind::kReceive && !step.post.sizes;
      if (receives && step.post.tensor == tensor) return step.post;
    }
    return {tensor, -1, false};
  }

  // Returns whether the step could be done.
  bool take(int64_t rank, const Step& step, Sends mode) {
    const Post& post = step.post;
    if (step.kind == Step::Kind::kReceive) {
      receives_[{post.peer, rank}].push_back(post);
      return true;
    }
    if (step.kind == Step::Kind::kWait) {
      const auto& receives = receives_[{post.peer, rank}];
      const auto found = std::find(receives.begin(), receives.end(), post);
      return found != receives.end() &&
             sends_[{post.peer, rank}].size() > static_cast<size_t>(found - receives.begin());
    }
    auto& sends = sends_[{rank, post.peer}];
    if (mode == Sends::kBlocking && receives_[{rank, post.peer}].size() <= sends.size()) {
      return false;
    }
    sends.push_back(post);
    return true;
  }

  std::vector<std::vector<Step>> steps_;  // by rank
  std::map<Ends, std::vector<Post>> sends_;
  std::map<Ends, std::vector<Post>> receives_;
};

}  // namespace shardproof::tests
