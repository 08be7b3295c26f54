// The posts of every small pipeline on a transport without tags.
#include "parallel/pp/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "base/error.h"
#include "tests/unit/parallel/pp/tables_text.h"

namespace shardproof::tests {
namespace {

struct TransportResult {
  bool finished = true;  // false: ranks wait for one another
  int64_t messages = 0;
  std::vector<std::string> wrong;  // receives that got another message
};

// A transport without tags on paper: from one rank to another, the first send pairs with the first
// receive that is posted, the second with the second, whatever they are.
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

using Schedule = PipelineSchedule;
using Sends = MessageTransport::Sends;
using AllPosts = std::vector<std::vector<ActionPosts>>;

// Two tests state in which tables of papers something goes wrong, and nothing of later schedules.
constexpr Schedule kLastPublished = Schedule::kDualPipeV;

std::string short_text(const BoundaryTensor& tensor) {
  return fmt::format("{}{}@{}", tensor.kind == BoundaryTensor::Kind::kActivation ? "a" : "g",
                     tensor.microbatch, tensor.boundary);
}

// "a0@1" is the activation of microbatch 0 over boundary 1, "g0@1" its gradient; "?" posts a
// receive and "!" a send. The action is between them, in the notation of tables_text.h.
std::string posts_text(const std::vector<Action>& actions, const std::vector<ActionPosts>& posts) {
  std::string text;
  for (size_t i = 0; i < actions.size(); ++i) {
    for (const Post& post : posts[i].receives) text += " ?" + short_text(post.tensor);
    text += " " + text_of(actions[i]);
    for (const Post& post : posts[i].sends) text += " !" + short_text(post.tensor);
  }
  return text.substr(1);
}

AllPosts posts_of(const Pipeline& pipeline, int64_t microbatches,
                  BoundaryShapes shapes = BoundaryShapes::kKnown) {
  return pipeline_posts(pipeline.placement(), pipeline_tables(pipeline, microbatches), shapes);
}

std::string text_of_rank(const Pipeline& pipeline, int64_t microbatches, size_t rank) {
  return posts_text(pipeline_tables(pipeline, microbatches)[rank],
                    posts_of(pipeline, microbatches)[rank]);
}

// Each receive directly before the action that reads it.
AllPosts posted_where_read(AllPosts posts) {
  for (auto& actions : posts) {
    std::vector<Post> receives;
    for (ActionPosts& action : actions) {
      receives.insert(receives.end(), action.receives.begin(), action.receives.end());
      action.receives.clear();
      for (const Post& post : receives) {
        if (action.reads == post.tensor) action.receives.push_back(post);
      }
    }
  }
  return posts;
}

// Messages of a step, by the boundaries that are between two ranks.
int64_t messages_in(const Pipeline& pipeline, int64_t microbatches, int64_t directions) {
  const bool v = pipeline.placement().shape == Placement::Shape::kV;
  const int64_t boundaries =
      pipeline.ranks == 1 ? 0 : pipeline.ranks * pipeline.chunks - (v ? 2 : 1);
  return boundaries * microbatches * directions;
}

TEST_CASE("posts of 1f1b and zbv with 2 ranks", "[pp]") {
  const Pipeline simple{Schedule::k1F1B, 2, 1};
  CHECK(text_of_rank(simple, 2, 0) == "F0 !a0@0 F1 !a1@0 ?g0@0 B0 ?g1@0 B1");
  CHECK(text_of_rank(simple, 2, 1) == "?a0@0 F0 B0 !g0@0 ?a1@0 F1 B1 !g1@0");
  // Rank 0 sends the activation of microbatch 2 before a gradient that rank 1 needs earlier, so
  // that rank 1 posts ?a2@0 before it reads g0@2. Boundary 1 is within rank 1.
  const Pipeline v{Schedule::kZbV, 2, 2};
  CHECK(text_of_rank(v, 3, 0) ==
        "F0 !a0@0 F1 !a1@0 F2 !a2@0 ?a0@2 F0' B0' !g0@2 W0' ?a1@2 F1' B1' !g1@2 W1' "
        "?g0@0 B0 W0 ?a2@2 F2' B2' !g2@2 W2' ?g1@0 B1 W1 ?g2@0 B2 W2");
  CHECK(text_of_rank(v, 3, 1) ==
        "?a0@0 F0 F0' !a0@2 ?a1@0 F1 F1' !a1@2 ?a2@0 ?g0@2 B0' W0' F2 B0 !g0@0 W0 F2' !a2@2 "
        "?g1@2 B1' W1' B1 !g1@0 ?g2@2 B2' B2 !g2@0 W1 W2' W2");
}

TEST_CASE("every receive pairs with its own message on a transport without tags", "[pp]") {
  each_pipeline([](const Pipeline& pipeline, int64_t microbatches) {
    INFO(text_of(pipeline, microbatches));
    for (const auto shapes : {BoundaryShapes::kKnown, BoundaryShapes::kExchanged}) {
      const int64_t parts = shapes == BoundaryShapes::kExchanged ? 2 : 1;
      const auto step =
          MessageTransport().play(posts_of(pipeline, microbatches, shapes), Sends::kFree);
      CHECK(step.finished);
      CHECK(step.wrong.empty());
      CHECK(step.messages == parts * messages_in(pipeline, microbatches, 2));
      const auto forwards = MessageTransport().play(
          pipeline_posts(pipeline.placement(), forward_tables(pipeline, microbatches), shapes),
          Sends::kFree);
      CHECK(forwards.finished);
      CHECK(forwards.wrong.empty());
      CHECK(forwards.messages == parts * messages_in(pipeline, microbatches, 1));
    }
  });
}

TEST_CASE("receives that are posted where they are read pair wrongly in some tables", "[pp]") {
  std::set<std::string> wrong_in;
  each_pipeline([&](const Pipeline& pipeline, int64_t microbatches) {
    if (pipeline.schedule > kLastPublished) return;
    INFO(text_of(pipeline, microbatches));
    const auto [schedule, p, v, configured] = pipeline;
    const int64_t group = configured == 0 ? p : configured;
    bool expected = false;
    if (schedule == Schedule::kZbV) expected = p > 1 && microbatches > p;
    if (schedule == Schedule::kDualPipeV) expected = p >= 3;
    if (schedule == Schedule::kZb1p) expected = p == 2 && v >= 2 && microbatches >= 3;
    if (schedule == Schedule::kInterleaved) expected = p == 2 && group > p && microbatches > 3;
    const auto result =
        MessageTransport().play(posted_where_read(posts_of(pipeline, microbatches)), Sends::kFree);
    CHECK(result.wrong.empty() == !expected);
    if (expected) wrong_in.insert(name_of(schedule));
  });
  CHECK(wrong_in == std::set<std::string>{"zbv", "dualpipev", "zb1p", "interleaved"});
  const auto result =
      MessageTransport().play(posted_where_read(posts_of({Schedule::kZbV, 2, 2}, 3)), Sends::kFree);
  REQUIRE(result.wrong.size() == 2);
  CHECK(result.wrong[0] ==
        "rank 1 receives pp activation of microbatch 2 from stage 0 to 1, pass 0 as pp gradient of "
        "microbatch 0 from stage 3 to 2, pass 0");
}

TEST_CASE("sends that block make ranks wait for one another in every schedule but gpipe", "[pp]") {
  std::set<std::string> stuck;
  each_pipeline([&](const Pipeline& pipeline, int64_t microbatches) {
    if (pipeline.schedule > kLastPublished) return;
    const auto result = MessageTransport().play(posts_of(pipeline, microbatches), Sends::kBlocking);
    if (!result.finished) stuck.insert(name_of(pipeline.schedule));
  });
  CHECK(stuck == std::set<std::string>{"1f1b", "interleaved", "bfs", "zb1p", "zbv", "dualpipev"});
}

TEST_CASE("sizes precede each tensor", "[pp]") {
  const auto posts = posts_of({Schedule::kGPipe, 2, 1}, 1, BoundaryShapes::kExchanged);
  const BoundaryTensor activation{BoundaryTensor::Kind::kActivation, 0, 0};
  CHECK((posts[0][0].sends == std::vector<Post>{{activation, 1, true}, {activation, 1, false}}));
  CHECK((posts[1][0].receives == std::vector<Post>{{activation, 0, true}, {activation, 0, false}}));
  CHECK((posts[1][0].reads == activation));
}

TEST_CASE("no gradient goes to a stage without a backward", "[pp]") {
  const Pipeline pipeline{Schedule::k1F1B, 3, 1};
  auto tables = pipeline_tables(pipeline, 2);
  leave_out_untrained(tables, pipeline.placement(), 1);
  const auto posts = pipeline_posts(pipeline.placement(), tables);
  CHECK(posts_text(tables[0], posts[0]) == "F0 !a0@0 F1 !a1@0");
  CHECK(posts_text(tables[1], posts[1]) == "?a0@0 F0 !a0@1 ?a1@0 F1 !a1@1 ?g0@1 B0 ?g1@1 B1");
  CHECK(posts_text(tables[2], posts[2]) == "?a0@1 F0 B0 !g0@1 ?a1@1 F1 B1 !g1@1");
  each_pipeline([](const Pipeline& each, int64_t microbatches) {
    INFO(text_of(each, microbatches));
    for (int64_t first = 0; first < each.placement().stages(); ++first) {
      auto trained = pipeline_tables(each, microbatches);
      leave_out_untrained(trained, each.placement(), first);
      const auto step =
          MessageTransport().play(pipeline_posts(each.placement(), trained), Sends::kFree);
      CHECK(step.finished);
      CHECK(step.wrong.empty());
      int64_t messages = 0;  // a gradient goes only where a backward is
      for (int64_t stage = 0; stage + 1 < each.placement().stages(); ++stage) {
        if (each.placement().sends_after(stage)) messages += microbatches * (stage < first ? 1 : 2);
      }
      CHECK(step.messages == messages);
    }
  });
}

TEST_CASE("tables that cannot be run have no posts", "[pp]") {
  auto tables = pipeline_tables({Schedule::k1F1B, 2, 1}, 2);
  const Placement placement{2, 1, Placement::Shape::kLoop};
  std::swap(tables[1][0], tables[1][1]);
  CHECK_THROWS_WITH(pipeline_posts(placement, tables),
                    Catch::Contains("the tables of the pipeline cannot be run: B of microbatch 0 "
                                    "in chunk 0 on rank 1 needs F of microbatch 0 in chunk 0 on "
                                    "rank 1"));
  // A message that nobody receives.
  tables = pipeline_tables({Schedule::kGPipe, 2, 1}, 2);
  tables[1] = {tables[1][0], tables[1][2]};
  tables[0].pop_back();
  CHECK_THROWS_WITH(pipeline_posts(placement, tables),
                    Catch::Contains("rank 1 receives 1 of 2 messages of rank 0"));
}

TEST_CASE("each message has a tag and a label of its own", "[pp]") {
  const Pipeline pipeline{Schedule::kInterleaved, 2, 3, 3};
  std::set<int> tags;
  std::set<std::string> labels;
  size_t sends = 0;
  const auto posts = posts_of(pipeline, 5, BoundaryShapes::kExchanged);
  for (const int64_t pass : {0, 1, 2, 1'000'000'000}) {
    for (const auto& actions : posts) {
      for (const ActionPosts& action : actions) {
        for (const Post& post : action.sends) {
          const int tag = message_tag(post, pipeline.placement(), 5, pass);
          CHECK(tag >= 0);
          tags.insert(tag);
          labels.insert(message_label(post, pass));
          ++sends;
        }
      }
    }
  }
  CHECK(sends == 4 * 2 * 2 * 5 * 5);
  CHECK(tags.size() == sends);
  CHECK(labels.size() == sends);
  const BoundaryTensor gradient{BoundaryTensor::Kind::kGradient, 1, 3};
  CHECK(message_label({gradient, 0, false}, 7) ==
        "pp gradient of microbatch 3 from stage 2 to 1, pass 7");
  CHECK(message_label({gradient, 0, true}, 7) ==
        "pp sizes of gradient of microbatch 3 from stage 2 to 1, pass 7");
  // Both ends, whose peers differ, have one tag.
  CHECK(message_tag({gradient, 0, true}, pipeline.placement(), 5, 3) ==
        message_tag({gradient, 1, true}, pipeline.placement(), 5, 3));
}

}  // namespace
}  // namespace shardproof::tests
