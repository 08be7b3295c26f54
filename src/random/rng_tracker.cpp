#include "random/rng_tracker.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <bit>
#include <mutex>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof {

struct RngTracker::Stream {
  uint64_t seed = 0;
  int64_t offset = 0;
  at::Generator generator;
};

namespace {

// A digest of the state, which every draw changes. All threads of the process share the generator;
// reading it requires its mutex. Allocates nothing, because the destructor of a fork calls it.
uint64_t default_generator_digest() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  auto& state = *generator.get<at::CPUGeneratorImpl>();
  const at::mt19937_data_pod numbers = state.engine().data();
  uint64_t digest = numbers.next_;
  for (const uint32_t number : numbers.state_) digest = mix_bits(digest ^ number);
  // The second number of a pair of normal ones is kept; drawing it leaves the others unchanged.
  const auto single = state.next_float_normal_sample();
  const auto wide = state.next_double_normal_sample();
  digest = mix_bits(digest ^ std::bit_cast<uint32_t>(single.value_or(0)) ^ (single ? 1 : 0));
  return mix_bits(digest ^ std::bit_cast<uint64_t>(wide.value_or(0)) ^ (wide ? 1 : 0));
}

}  // namespace

RngTracker::RngTracker(DrawLog* log) : log_(log) {}
RngTracker::~RngTracker() = default;
RngTracker::RngTracker(RngTracker&&) noexcept = default;

RngTracker RngTracker::for_inference() {
  RngTracker tracker;
  tracker.inference_ = true;
  return tracker;
}

void RngTracker::reset() {
  SHARDPROOF_ASSERT(forks_.empty(), "the streams are dropped while a fork uses one");
  streams_.clear();
  warnings_.clear();
}

void RngTracker::add(const std::string& name, uint64_t seed) {
  if (inference_) return;
  if (seed > kMaxGeneratorSeed) {
    throw_bad_input(
        fmt::format("random stream '{}' has seed {}, of which a generator takes the low "
                    "32 bits only",
                    name, seed),
        fmt::format("give one of at most {}", kMaxGeneratorSeed));
  }
  for (const auto& [other, stream] : streams_) {
    if (stream->seed == seed) {
      throw_bad_input(
          fmt::format("random stream '{}' has seed {}, which is that of stream '{}' already", name,
                      seed, other),
          "give each stream a seed of its own: equal ones draw the same numbers");
    }
  }
  if (streams_.count(name) != 0) {
    throw_bad_input(fmt::format("there is a random stream '{}' already", name),
                    "choose another name, or reset the tracker first");
  }
  auto stream = std::make_unique<Stream>();
  stream->seed = seed;
  stream->generator = at::detail::createCPUGenerator(seed);
  streams_.emplace(name, std::move(stream));
}

RngTracker::Fork RngTracker::fork(const std::string& name) {
  if (inference_) return Fork(nullptr);
  if (streams_.count(name) == 0) {
    std::vector<std::string> known;
    for (const auto& [other, stream] : streams_) known.push_back(other);
    const std::string nearest = nearest_name(name, known);
    throw_bad_input(
        fmt::format("there is no random stream '{}'", name),
        nearest.empty() ? "add it with a seed first" : fmt::format("did you mean '{}'?", nearest));
  }
  notice_stray_draws();
  forks_.push_back(name);
  return Fork(this);
}

RngTracker::Fork::Fork(Fork&& other) noexcept : tracker_(std::exchange(other.tracker_, nullptr)) {}

RngTracker::Fork::~Fork() {
  if (tracker_ != nullptr) tracker_->leave_fork();
}

void RngTracker::leave_fork() {
  notice_stray_draws();
  forks_.pop_back();
}

// Called wherever the innermost fork changes: any move since the last call happened in that fork.
// No other code can reach the generators of the streams.
void RngTracker::notice_stray_draws() {
  const uint64_t digest = default_generator_digest();
  if (!forks_.empty() && digest != default_digest_) {
    warnings_.push_back(
        fmt::format("the process's default generator moved inside a fork of random stream '{}': "
                    "those numbers are another generator's",
                    forks_.back()));
  }
  default_digest_ = digest;
}

std::string RngTracker::current_stream() const {
  return forks_.empty() ? kDataParallelRng : forks_.back();
}

RngStates RngTracker::states() const {
  RngStates states;
  for (const auto& [name, stream] : streams_) {
    states[name] = {stream->seed, stream->offset, stream->generator.get_state().clone()};
  }
  return states;
}

void RngTracker::set_states(const RngStates& states) {
  if (inference_) return;
  for (const std::string& open : forks_) {
    if (states.count(open) != 0) continue;
    throw_bad_input(
        fmt::format("the states have no random stream '{}', which an open fork draws from", open),
        "leave the fork first, or give states that have the stream");
  }
  for (auto stream = streams_.begin(); stream != streams_.end();) {
    stream = states.count(stream->first) != 0 ? std::next(stream) : streams_.erase(stream);
  }
  for (const auto& [name, state] : states) {
    std::unique_ptr<Stream>& stream = streams_[name];
    if (!stream) {
      stream = std::make_unique<Stream>();
      stream->generator = at::detail::createCPUGenerator(state.seed);
    }
    stream->seed = state.seed;
    stream->offset = state.offset;
    stream->generator.set_state(state.state);
  }
}

RngTracker::Stream& RngTracker::stream_to_draw_from(std::string_view place) {
  if (inference_) {
    throw_refused(fmt::format("{} draws random numbers in inference", place),
                  "turn it off for inference (training = false), or use a tracker for training");
  }
  const auto found = streams_.find(current_stream());
  if (found == streams_.end()) {
    throw_bad_input(fmt::format("{} draws from random stream '{}', which was never added", place,
                                current_stream()),
                    "seed the tracker first (seed_streams), or fork a stream that there is");
  }
  return *found->second;
}

at::Tensor RngTracker::drawn(at::IntArrayRef shape, std::string_view place,
                             const std::function<at::Tensor(const at::Generator&)>& draw) {
  Stream& stream = stream_to_draw_from(place);
  const int64_t count = c10::multiply_integers(shape);
  RandomDraw logged{.place = std::string(place),
                    .stream = current_stream(),
                    .seed = stream.seed,
                    .offset = stream.offset,
                    .count = count,
                    .state = log_ != nullptr ? generator_digest(stream.generator) : 0,
                    .phase = phase_};
  at::Tensor numbers = draw(stream.generator);  // draws nothing when it throws
  stream.offset += count;
  if (log_ != nullptr) log_->add(std::move(logged));
  return numbers;
}

at::Tensor RngTracker::uniform(at::IntArrayRef shape, std::string_view place) {
  return drawn(shape, place, [&](const at::Generator& generator) {
    return at::rand(shape, generator, at::TensorOptions().dtype(at::kFloat));
  });
}

at::Tensor RngTracker::normal(at::IntArrayRef shape, std::string_view place) {
  return drawn(shape, place, [&](const at::Generator& generator) {
    return at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble));
  });
}

}  // namespace shardproof
