#include "sim/world/launch/golden_worker.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/elapsed.h"
#include "base/error.h"
#include "sim/world/process/exit_text.h"

namespace shardproof::sim {

std::shared_ptr<GoldenWorker> GoldenWorker::start(boost::asio::io_context& io, Workers& workers) {
  std::shared_ptr<GoldenWorker> golden(new GoldenWorker(io));
  WorkerSetup setup;
  setup.role = "golden";
  golden->worker_ = workers.start(setup, {});
  const auto weak = golden->weak_from_this();
  golden->worker_->start(
      {.on_frame =
           [weak](Frame frame) {
             const auto self = weak.lock();
             if (self && frame.type == FrameType::kTaskDone) {
               self->finish(decode_task_outcome(frame.payload));
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
  done_ = std::move(done);
  std::vector<OwnedFd> fds;
  fds.push_back(OwnedFd(::fcntl(task.golden_fd, F_DUPFD_CLOEXEC, 0)));
  SHARDPROOF_ASSERT(fds[0].valid(), "a golden without a place to write to");
  worker_->forget_output();
  const nlohmann::json request = {{"request", task.request}, {"dump", task.dump_path}};
  worker_->send(FrameType::kRequest, request.dump(), std::move(fds));
  Deadline deadline(task.deadline_s, 1);  // it computes on one core
  deadline.sample(0, {worker_->cpu_seconds()});
  watch(deadline, std::chrono::steady_clock::now(), task.deadline_s);
}

void GoldenWorker::watch(Deadline deadline, std::chrono::steady_clock::time_point start,
                         double limit_s) {
  const double period_s = std::clamp(limit_s / 16, 0.01, 1.0);
  timer_.expires_after(std::chrono::milliseconds(static_cast<int64_t>(period_s * 1000)));
  timer_.async_wait([self = weak_from_this(), deadline, start, limit_s](const auto& error) mutable {
    const auto golden = self.lock();
    if (error || !golden || !golden->done_) return;
    if (!deadline.sample(seconds_since(start), {golden->worker_->cpu_seconds()})) {
      return golden->watch(deadline, start, limit_s);
    }
    golden->end({.kind = ResultKind::kHung,
                 .message = fmt::format("the golden did not end within {:g} s; raise "
                                        "world.deadline_s, or make the model smaller",
                                        limit_s)});
  });
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

}  // namespace shardproof::sim
