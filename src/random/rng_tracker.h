// The random streams of one rank, by name: each with its own generator, chosen by a fork.
//
//   RngTracker rng(&log);
//   seed_streams(rng, seed, {.tp_rank = tp.rank()});     rng_seeds.h
//   x = dropout(x, 0.1, rng, "residual dropout");        outside: the data parallel stream
//   {
//     const auto region = rng.fork(kModelParallelRng);   inside: another stream on each tp rank
//     y = dropout(y, 0.1, rng, "attention dropout");
//   }
//
// Code that draws does not know where it runs: it asks the tracker, and gets the stream of the
// innermost fork. Nothing is global and no default generator is touched: the ranks of an emulated
// world are threads of one process and share it.
//
// Source: Megatron-LM random.py, CudaRNGStatesTracker. Differences: there a fork loads the stream
// into the device's default generator and takes it back; an exception between add's two checks left
// the seed taken but the stream missing. There the default generator and the stream
// "data-parallel-rng" begin with one seed and so draw the same numbers for two purposes; here
// outside of all forks the data parallel stream itself is drawn from.
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

// What a stream was and is: enough to go on from there.
struct RngState {
  uint64_t seed = 0;
  int64_t offset = 0;  // numbers drawn since
  at::Tensor state;    // the generator's own, a copy
};
using RngStates = std::map<std::string, RngState>;

class RngTracker {
 public:
  // `log` hears of every draw; may be null, must outlive the tracker.
  explicit RngTracker(DrawLog* log = nullptr);
  // Inference: add, fork and set_states do nothing, and whoever draws is refused.
  static RngTracker for_inference();
  ~RngTracker();
  RngTracker(RngTracker&&) noexcept;
  RngTracker& operator=(RngTracker&&) = delete;

  bool is_initialized() const { return initialized_; }  // add() or set_states() since reset()
  bool is_inference() const { return inference_; }
  // No streams, no seeds. Not inside a fork (asserted).
  void reset();
  // Throws Error(kBadInput): a seed or a name that there is already; nothing is changed then.
  void add(const std::string& name, uint64_t seed);

  // The stream of all draws until it goes out of scope, also when that is by an exception. Forks
  // nest; the last made goes first. Throws Error(kBadInput): a stream that was never added.
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
  // Of the innermost fork; outside kDataParallelRng.
  std::string current_stream() const;

  // Copies: later draws do not change them, and the tracker may be given them more than once.
  RngStates states() const;
  // From now on these streams and no others, each going on where its state was taken. Seeds are
  // taken over too: there they stayed those of the streams before. Throws Error(kBadInput): no
  // state of a stream that an open fork draws from; nothing is changed then.
  void set_states(const RngStates& states);

  // [shape] float32 in [0, 1), float64 normal: from the current stream, told to the log under
  // `place`. The same numbers whatever the number of threads. Throws Error(kBadInput): no such
  // stream was added; Error(kRefused): an inference tracker.
  at::Tensor uniform(at::IntArrayRef shape, std::string_view place);
  at::Tensor normal(at::IntArrayRef shape, std::string_view place);

  // Says of further draws that they are made again, until it goes out of scope.
  class [[nodiscard]] Recomputing {
   public:
    explicit Recomputing(RngTracker& tracker) : tracker_(tracker), before_(tracker.phase_) {
      tracker_.phase_ = Phase::kRecompute;
    }
    ~Recomputing() { tracker_.phase_ = before_; }
    Recomputing(const Recomputing&) = delete;
    Recomputing& operator=(const Recomputing&) = delete;

   private:
    RngTracker& tracker_;
    Phase before_;
  };

  // Sentences: inside a fork the process's default generator moved: those numbers do not come from
  // where the code says. Each move is told once, of the fork that was the innermost.
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
  bool initialized_ = false;
  Phase phase_ = Phase::kForward;
  std::map<std::string, std::unique_ptr<Stream>> streams_;
  std::vector<std::string> forks_;  // the streams of those that are open, the innermost last
  uint64_t default_digest_ = 0;     // of the process's default generator as of the last notice
  std::vector<std::string> warnings_;
};

// All streams go back to where they were when this goes out of scope, also by an exception.
class KeepRngStates {
 public:
  explicit KeepRngStates(RngTracker& tracker) : tracker_(tracker), states_(tracker.states()) {}
  ~KeepRngStates() { tracker_.set_states(states_); }
  KeepRngStates(const KeepRngStates&) = delete;
  KeepRngStates& operator=(const KeepRngStates&) = delete;

 private:
  RngTracker& tracker_;
  RngStates states_;
};

}  // namespace shardproof
