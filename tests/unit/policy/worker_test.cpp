// A policy worker's functions in a training step.
#include "policy/worker.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/unit/policy/small_worker.h"

namespace shardproof::tests {
namespace {

TEST_CASE("a loss that a call chose for itself ends with it", "[policy][PW-2]") {
  with_workers(WorkerTrial{}, [&](PolicyWorker& worker, MeshComm&, int64_t) {
    const auto loss_of = [&](const TrainCall& call) {
      return worker.train(six_samples(), call).front().loss;
    };
    const double own = loss_of({.eval_mode = true});
    const LossOptions over_sequences{.normalization = LossNormalization::kSequence};
    MUST(loss_of({.loss = over_sequences, .eval_mode = true}) != Approx(own).epsilon(1e-6));
    MUST(loss_of({.eval_mode = true}) == own);
  });
}

TEST_CASE("the reference scores with the first weights, and the policy goes on to the bit",
          "[policy][PW-5]") {
  for (const DataParallelKind kind : {DataParallelKind::kReplicate, DataParallelKind::kFsdp}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      ThrowingProbe probe;
      probe.end_of_name = "layers.1.mlp.down_proj.output";
      WorkerTrial trial{
          .mesh = Mesh::training({.dp = 2, .tp = 3}), .dtype = dtype, .probe = &probe};
      trial.options.parallel.data.kind = kind;
      const auto run = [&](bool refers) {
        return with_workers(trial, [&](PolicyWorker& worker, MeshComm& comm, int64_t) {
          const at::Tensor first = worker.score(six_samples());
          worker.train(six_samples());
          if (refers) {
            MUST(difference(first, worker.reference_logprobs(six_samples()), 0) == "");
            MUST(difference(first, worker.score(six_samples()), 1e-6) != "");
            while_armed(probe, comm, [&] { worker.reference_logprobs(six_samples()); });
          }
          worker.train(six_samples());
        });
      };
      CHECK(difference(run(false), run(true), 0) == "");
    }
  }
}

TEST_CASE("a step that throws leaves the worker as it was, ready for another", "[policy][PW-2]") {
  struct Place {
    Phase phase;
    const char* end_of_name;
    int64_t microbatch;
  };
  // The last one leaves most: sums of earlier microbatches, and a reduction in flight.
  const std::vector<Place> places = {{Phase::kForward, "layers.2.self_attn.o_proj.output", 0},
                                     {Phase::kStep, "grad.model.norm.weight", 0},
                                     {Phase::kBackward, "layers.1.mlp.down_proj.grad_input", 1},
                                     {Phase::kBackward, "layers.0.mlp.up_proj.grad_input", 2}};
  for (const DataParallelKind kind :
       {DataParallelKind::kReplicate, DataParallelKind::kFsdp, DataParallelKind::kHybrid}) {
    for (const bool reduces : {true, false}) {
      WorkerTrial trial{.mesh = Mesh::training({.dp = 4})};
      trial.options.parallel.data = {
          .kind = kind, .replicate_size = 2, .reduce_each_microbatch = reduces};
      trial.options.train.micro_batch_size = 1;
      const Batch data = seeded_batch({.batch_size = 12, .seq_len = 6, .vocab_size = 29});
      ThrowingProbe probe;
      trial.probe = &probe;
      const auto run = [&](bool throws) {
        return with_workers(trial, [&](PolicyWorker& worker, MeshComm& comm, int64_t rank) {
          const at::Tensor first = worker.score(data);
          worker.train(data);
          for (const Place& place : places) {
            if (!throws) break;
            comm.world().barrier("nobody reads the probe");
            if (rank == 0) {
              probe.phase = place.phase;
              probe.end_of_name = place.end_of_name;
              probe.microbatch = place.microbatch;
            }
            while_armed(probe, comm, [&] { worker.train(data); });
            MUST(worker.trainer().step_count() == 1);
            for (const ParameterPtr& parameter : worker.trainer().parameters()) {
              MUST(!parameter->tensor.grad().defined());
            }
            // It may not use the policy's weights, which were moving in that step.
            MUST(difference(first, worker.reference_logprobs(data), 0) == "");
          }
          worker.train(data);
        });
      };
      CHECK(difference(run(false), run(true), 0) == "");
    }
  }
}

// The call with six samples in global batches of two throws after `made` of them.
struct FailingCall {
  int64_t made;
  enum { kBefore, kWithin, kAfter } place;
};

TEST_CASE("a call that throws leaves the worker as a call with the global batches before",
          "[policy][PW-2]") {
  ThrowingProbe probe;
  probe.phase = Phase::kBackward;
  probe.end_of_name = "layers.1.mlp.down_proj.grad_input";
  WorkerTrial trial{.probe = &probe};
  trial.options.train_global_batch_size = 2;
  trial.options.train.schedule = {
      .stages = {{.kind = ScheduleKind::kLambda, .lambdas = {1.0, 0.5, 0.125}}}};
  const auto throwing_call = [&](const FailingCall& failing) {
    const auto throws_at = [](int64_t wanted) {
      return [wanted](int64_t index) {
        if (index == wanted) throw std::runtime_error("the probe at a batch");
      };
    };
    TrainCall call;
    if (failing.place == FailingCall::kBefore) call.before_batch = throws_at(failing.made);
    if (failing.place == FailingCall::kAfter) call.after_batch = throws_at(failing.made - 1);
    if (failing.place == FailingCall::kWithin) {
      call.before_batch = [&, failing](int64_t index) {
        if (index == failing.made) probe.armed = true;
      };
    }
    return call;
  };
  const Batch data = six_samples();
  for (const FailingCall& failing : std::vector<FailingCall>{{0, FailingCall::kBefore},
                                                             {0, FailingCall::kWithin},
                                                             {1, FailingCall::kWithin},
                                                             {2, FailingCall::kBefore},
                                                             {3, FailingCall::kAfter}}) {
    INFO(failing.made << " made, place " << failing.place);
    const auto run = [&](bool throws) {
      return with_workers(trial, [&](PolicyWorker& worker, MeshComm& comm, int64_t) {
        if (throws) {
          must_throw("the probe at", [&] { worker.train(data, throwing_call(failing)); });
          comm.world().barrier("all have thrown");
          probe.armed = false;
          comm.world().barrier("disarmed");
        } else if (failing.made > 0) {
          worker.train(data.slice(0, 2 * failing.made));
        }
        MUST(worker.trainer().step_count() == failing.made);
        MUST(worker.trainer().schedule_steps() == (failing.made > 0 ? 1 : 0));
        worker.train(data);
      });
    };
    CHECK(difference(run(false), run(true), 0) == "");
  }
}

TEST_CASE("a step whose update a probe does not take is done, with its scheduler step",
          "[policy][PW-2]") {
  ThrowingProbe probe;
  probe.phase = Phase::kStep;
  probe.end_of_name = "param.model.norm.weight";
  probe.armed = true;
  with_workers({.probe = &probe}, [&](PolicyWorker& worker, MeshComm&, int64_t) {
    Trainer& trainer = worker.trainer();
    must_throw("the probe at", [&] { trainer.step(six_samples()); });
    MUST(trainer.step_count() == 1);
    MUST(trainer.schedule_steps() == 1);
  });
}

TEST_CASE("a worker whose step threw settles before it ends", "[policy][PW-2]") {
  // The first leaves a gather in flight, the second a reduction.
  for (const char* place :
       {"layers.2.mlp.down_proj.grad_input", "layers.1.mlp.down_proj.grad_input"}) {
    for (const bool settles : {false, true}) {
      ThrowingProbe probe;
      probe.phase = Phase::kBackward;
      probe.end_of_name = place;
      probe.armed = true;
      WorkerTrial trial{.probe = &probe};
      trial.options.parallel.data = fsdp();
      const RankRuns runs = try_emulated_ranks(trial.mesh, [&](MeshComm& comm, int64_t rank) {
        with_worker(trial, comm, rank, [&](PolicyWorker& worker) {
          must_throw("the probe at", [&] { worker.train(six_samples()); });
          if (settles) worker.settle();
        });
      });
      INFO(place);
      CHECK((runs.failure ? runs.failure->code : "") == (settles ? "" : "never_waited"));
      if (settles) CHECK(runs.error_text(0) == "");
    }
  }
}

TEST_CASE("a worker that is offloaded ends without new memory", "[policy][PW-7][PW-11]") {
  const WorkerTrial trial{.mesh = Mesh::training({})};
  run_emulated_ranks(trial.mesh, [&](MeshComm& comm, int64_t rank) {
    TensorMemory memory;
    with_worker(trial, comm, rank, [&](PolicyWorker& worker) {
      worker.train(six_samples());
      worker.offload(Offloaded::What::kParametersAndOptimizer);
      memory.reset_peak();
      const int64_t before = memory.current_bytes();
      worker.shutdown();
      MUST(memory.peak_bytes() == before);
      MUST(memory.current_bytes() < before);
    });
  });
}

TEST_CASE("noise is the policy's alone, and moves weights back that were offloaded",
          "[policy][PW-10]") {
  with_workers({}, [&](PolicyWorker& worker, MeshComm&, int64_t) {
    const at::Tensor first = worker.score(six_samples());
    worker.offload(Offloaded::What::kParametersAndOptimizer);
    worker.add_noise(0.01, 8);
    MUST(!worker.report().offloaded);
    MUST(difference(first, worker.score(six_samples()), 1e-6) != "");
    MUST(difference(first, worker.reference_logprobs(six_samples()), 0) == "");
  });
}

TEST_CASE("a worker that begins with other weights is one that was made with them",
          "[policy][MP-2][PW-5]") {
  WorkerTrial trial;
  trial.options.parallel.data = fsdp();
  trial.options.train.schedule = {
      .stages = {{.kind = ScheduleKind::kLambda, .lambdas = {1.0, 0.5, 0.125}}}};
  at::Tensor made_scores, begun_scores;
  const auto lives = [&](at::Tensor& scores, bool begins) {
    return with_workers(trial, [&](PolicyWorker& worker, MeshComm&, int64_t rank) {
      if (begins) {
        std::vector<at::Tensor> first;
        for (const at::Tensor& master : worker.trainer().masters()) first.push_back(master.clone());
        worker.add_noise(0.1, 5);
        worker.train(six_samples());
        worker.offload(Offloaded::What::kParametersAndOptimizer);
        worker.begin_with(first);
        MUST(worker.trainer().step_count() == 0);
      }
      worker.train(six_samples());
      const at::Tensor here = worker.reference_logprobs(six_samples());
      if (rank == 0) scores = here;
    });
  };
  CHECK(difference(lives(made_scores, false), lives(begun_scores, true), 0) == "");
  CHECK(difference(made_scores, begun_scores, 0) == "");
}

TEST_CASE("data that a call cannot take is refused with a sentence", "[policy][PW-2]") {
  with_workers({}, [&](PolicyWorker& worker, MeshComm&, int64_t) {
    Batch data = six_samples();
    must_throw("6 samples do not divide into global batches of 4",
               [&] { worker.train(data, {.global_batch_size = 4}); });
    Batch without = data;
    without.sample_mask = at::Tensor();
    must_throw("no sample_mask", [&] { worker.train(without); });
    without = data;
    without.token_mask = at::Tensor();
    must_throw("no token_mask", [&] { worker.train(without); });
    worker.train(without, {.loss = LossOptions{.normalization = LossNormalization::kSequence},
                           .eval_mode = true});
    Batch turned = data;
    turned.advantages = data.advantages.t().contiguous();
    must_throw("advantages is [12, 6]", [&] { worker.train(turned); });
    must_throw("advantages is [12, 6]", [&] { worker.score(turned); });
  });
  WorkerTrial without_reference;
  without_reference.options.keeps_reference = false;
  with_workers(without_reference, [&](PolicyWorker& worker, MeshComm&, int64_t) {
    must_throw("keeps no reference", [&] { worker.reference_logprobs(six_samples()); });
  });
}

TEST_CASE("a worker says how it is, counts ops and memory, and ends cleanly", "[policy][PW-11]") {
  WorkerTrial trial;
  trial.options.parallel.data = fsdp();
  with_workers(trial, [&](PolicyWorker& worker, MeshComm&, int64_t rank) {
    worker.train(six_samples());
    const WorkerReport trained = worker.report();
    MUST(trained.alive);
    MUST(trained.rank == rank);
    MUST(trained.device == "cpu");
    MUST(trained.held.optimizer == 2 * trained.held.gradients);
    MUST(trained.peak_bytes > trained.current_bytes);
    worker.reset_peak_memory();
    MUST(worker.report().peak_bytes == worker.report().current_bytes);

    worker.start_profiling();
    MUST(worker.report().profiling);
    worker.score(six_samples());
    const auto costs = worker.stop_profiling();
    MUST(costs.at("aten::mm").calls > 0);
    MUST(costs.at("aten::mm").seconds > 0);
    must_throw("not started", [&] { worker.stop_profiling(); });

    worker.offload(Offloaded::What::kParametersAndOptimizer);
    MUST(worker.report().offloaded);
    MUST(worker.report().held.parameters == 0);
    worker.score(six_samples());  // moves the weights back
    MUST(!worker.report().offloaded);
    MUST(worker.report().held.parameters == trained.held.parameters);

    worker.shutdown();
    worker.shutdown();
    MUST(!worker.report().alive);
    MUST(worker.report().held.parameters == 0);
    must_throw("shut down", [&] { worker.score(six_samples()); });
    must_throw("shut down", [&] { worker.start_profiling(); });
  });
}

}  // namespace
}  // namespace shardproof::tests
