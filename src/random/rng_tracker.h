// The named random streams of one rank, each with its own generator; a fork selects one.
//
//   RngTracker rng(&log);
//   seed_streams(rng, seed, {.tp_rank = tp.rank()});     rng_seeds.h
//   x = dropout(x, 0.1, rng, "residual dropout");        outside: the data parallel stream
//   {
//     const auto region = rng.fork(kModelParallelRng);   inside: another stream on each tp rank
//     y = dropout(y, 0.1, rng, "attention dropout");
//   }
//
// Code that draws does not know where it runs: the tracker gives it the stream of the innermost
// fork. Nothing is global, and no default generator is used, because the ranks of an emulated world
// are threads of one process and share it.
//
// Source: Megatron-LM random.py, CudaRNGStatesTracker. Differences: there a fork loads the stream
// into the device's default generator and takes it back, and an exception between the two checks of
// add leaves the seed taken but the stream missing. There the default generator and the stream
// "data-parallel-rng" have the same seed and so draw the same numbers for two purposes; here draws
// outside of all forks come from the data parallel stream itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "observe/draw_log.h"

namespace shardproof {

// The standard names.
inline constexpr const char* kDataParallelRng = "data-parallel-rng";
inline constexpr const char* kModelParallelRng = "model-parallel-rng";
inline constexpr const char* kExpertParallelRng = "expert-parallel-rng";

// The state of a stream, from which it can continue.
struct RngState {
  uint64_t seed = 0;
  int64_t offset = 0;  // numbers drawn since the seed
  at::Tensor state;    // the generator's state, copied
};
using RngStates = std::map<std::string, RngState>;

class RngTracker {
 public:
  // `log` gets every draw; it may be null and must outlive the tracker.
  explicit RngTracker(DrawLog* log = nullptr);
  // A tracker for inference: add, fork and set_states do nothing, and draws are refused.
  static RngTracker for_inference();
  ~RngTracker();
  RngTracker(RngTracker&&) noexcept;
  RngTracker& operator=(RngTracker&&) = delete;

  bool is_inference() const { return inference_; }
  // Removes all streams and seeds. Must not be called inside a fork (asserted).
  void reset();
  // Throws Error(kBadInput), with nothing changed, for a seed or a name that exists already, and
  // for a seed above kMaxGeneratorSeed (base/seed.h).
  void add(const std::string& name, uint64_t seed);

  // Selects the stream of all draws until it goes out of scope, even by an exception. Forks nest
  // and must end in reverse order. Throws Error(kBadInput) for a stream that was never added.
  class [[nodiscard]] Fork {
   public:
    Fork(Fork&& other) noexcept;
    Fork& operator=(Fork&&) = delete;
    ~Fork();

   private:
    friend class RngTracker;
    explicit Fork(RngTracker* tracker) : tracker_(tracker) {}
    RngTracker* tracker_;
  };
  Fork fork(const std::string& name = kModelParallelRng);
  // The stream of the innermost fork; kDataParallelRng outside of forks.
  std::string current_stream() const;

  // Copies: later draws do not change them, and they may be set more than once.
  RngStates states() const;
  // Replaces all streams by these, each at the position of its state. Replaces the seeds too (in
  // Megatron-LM those of the old streams stay). Throws Error(kBadInput), with nothing changed, when
  // the state of a stream that an open fork uses is missing.
  void set_states(const RngStates& states);

  // [shape] float32 in [0, 1), or float64 normal, from the current stream, logged under `place`.
  // The numbers do not depend on the number of threads. Throws Error(kBadInput) for a stream that
  // was not added, and Error(kRefused) for an inference tracker.
  at::Tensor uniform(at::IntArrayRef shape, std::string_view place);
  at::Tensor normal(at::IntArrayRef shape, std::string_view place);

  // Draws again from `then`, and marks the draws as recomputed. Restores all streams when it goes
  // out of scope, even by an exception.
  class [[nodiscard]] Recomputing {
   public:
    Recomputing(RngTracker& tracker, const RngStates& then)
        : tracker_(tracker), before_(tracker.phase_), states_(tracker.states()) {
      tracker_.set_states(then);
      tracker_.phase_ = Phase::kRecompute;
    }
    ~Recomputing() {
      tracker_.phase_ = before_;
      tracker_.set_states(states_);
    }
    Recomputing(const Recomputing&) = delete;
    Recomputing& operator=(const Recomputing&) = delete;

   private:
    RngTracker& tracker_;
    Phase before_;
    RngStates states_;
  };

  // Sentences about moves of the process's default generator inside a fork: those numbers came from
  // another generator. Each move is reported once, for the innermost fork.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Stream;
  void leave_fork();
  void notice_stray_draws();
  Stream& stream_to_draw_from(std::string_view place);
  at::Tensor drawn(at::IntArrayRef shape, std::string_view place,
                   const std::function<at::Tensor(const at::Generator&)>& draw);

  DrawLog* log_;
  bool inference_ = false;
  Phase phase_ = Phase::kForward;
  std::map<std::string, std::unique_ptr<Stream>> streams_;
  std::vector<std::string> forks_;  // streams of the open forks, the innermost last
  uint64_t default_digest_ = 0;     // of the process's default generator at the last check
  std::vector<std::string> warnings_;
};

}  // namespace shardproof
