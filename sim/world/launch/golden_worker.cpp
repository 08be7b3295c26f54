#include "sim/world/launch/golden_worker.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "base/elapsed.h"
#include "base/error.h"
#include "base/shortage.h"
#include "sim/world/process/process_clock.h"

namespace shardproof::sim::world {

std::shared_ptr<GoldenWorker> GoldenWorker::start(boost::asio::io_context& io, Workers& workers) {
  std::shared_ptr<GoldenWorker> golden(new GoldenWorker(io));
  WorkerSetup setup;
  setup.is_golden = true;
  golden->worker_ = workers.start(setup, {});
  const auto weak = golden->weak_from_this();
  golden->worker_->start(
      {.on_frame =
           [weak](Frame frame) {
             const auto self = weak.lock();
             if (self && frame.type == FrameType::kTaskDone) {
               self->finish(nlohmann::json::parse(frame.payload));
             }
           },
       .on_exit =
           [weak](const std::string& how) {
             const auto self = weak.lock();
             if (!self) return;
             self->broken_ = true;
             const std::string output = last_lines(self->worker_->output(), 5);
             self->finish({.kind = ResultKind::kDied,
                           .message = fmt::format(
                               "the process of the golden {}{}", how,
                               output.empty() ? "" : "; the last lines it printed:\n" + output)});
           }});
  return golden;
}

void GoldenWorker::run(const GoldenTask& task, std::function<void(TaskOutcome)> done) {
  SHARDPROOF_ASSERT(!done_ && !broken_, "a golden worker that is busy or broken was given a task");
  std::vector<OwnedFd> fds;
  fds.push_back(OwnedFd(::fcntl(task.golden_fd, F_DUPFD_CLOEXEC, 0)));
  if (!fds[0].valid()) throw_shortage("no descriptor is left for the golden", errno);
  const std::string request = request_text({{"case", to_json(task.spec)},
                                            {"members", static_cast<int>(task.members)},
                                            {"dump", task.dump_path}});
  done_ = std::move(done);
  worker_->forget_output();
  worker_->send(FrameType::kRequest, request, std::move(fds));
  const double hang_s = task.spec.world.hang_s, deadline_s = task.spec.world.deadline_s;
  Watch watched{.idle = HangRule(hang_s),
                .deadline = Deadline(deadline_s, 1),  // it computes on one core
                .hang_s = hang_s,
                .deadline_s = deadline_s,
                .start = std::chrono::steady_clock::now()};
  watched.deadline.sample(0, {worker_->cpu_seconds()});
  watch(std::move(watched));
}

void GoldenWorker::watch(Watch task) {
  const double period_s = std::min(std::clamp(task.deadline_s / 16, 0.01, 1.0),  //
                                   task.idle.period_s());
  timer_.expires_after(std::chrono::milliseconds(static_cast<int64_t>(period_s * 1000)));
  timer_.async_wait([self = weak_from_this(), task = std::move(task)](const auto& error) mutable {
    const auto golden = self.lock();
    if (error || !golden || !golden->done_) return;
    golden->worker_->drain();  // it may have ended while control was stopped
    if (!golden->done_) return;
    const double now_s = seconds_since(task.start);
    WorkerProcess& worker = *golden->worker_;
    if (task.deadline.sample(now_s, {worker.cpu_seconds()}, worker.ops())) {
      return golden->end({.kind = ResultKind::kHung,
                          .message = fmt::format("the golden did not end within {:g} s after its "
                                                 "last op; raise world.deadline_s, or make the "
                                                 "model smaller",
                                                 task.deadline_s)});
    }
    if (task.deadline.is_near()) worker.ask_ops();
    if (!golden->looks_idle(task.idle, now_s)) return golden->watch(std::move(task));
    const bool stopped = golden->worker_->stopped();
    golden->end(
        {.kind = stopped ? ResultKind::kDied : ResultKind::kHung,
         .message = fmt::format("the process of the golden {} for {:g} s, and was ended",
                                stopped ? "was stopped by a signal" : "did nothing", task.hang_s)});
  });
}

bool GoldenWorker::looks_idle(HangRule& rule, double now_s) const {
  if (!rule.sample({.now_s = now_s, .calls = 0, .cpu_s = {worker_->cpu_seconds()}})) return false;
  if (!worker_->runnable()) return true;
  rule.restart();  // it waits for the processor or the disk
  return false;
}

void GoldenWorker::kill() {
  end({.kind = ResultKind::kInterrupted, .message = "the golden was interrupted"});
}

void GoldenWorker::end(TaskOutcome outcome) {
  broken_ = true;
  worker_->kill();
  finish(std::move(outcome));
}

void GoldenWorker::finish(TaskOutcome outcome) {
  if (!done_) return;
  timer_.cancel();
  boost::asio::post(io_, [done = std::exchange(done_, {}), outcome = std::move(outcome)]() mutable {
    done(std::move(outcome));
  });
}

}  // namespace shardproof::sim::world
