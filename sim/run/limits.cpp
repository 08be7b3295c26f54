#include "sim/run/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/count_of.h"
#include "base/error.h"
#include "model/config.h"
#include "model/weights.h"
#include "parallel/tp/describe.h"
#include "sim/case/names.h"
#include "sim/world/launch/deadline.h"
#include "sim/world/rank/case_options.h"
#include "tensor/safetensors.h"

namespace shardproof::sim::run {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kGiB = 1 << 30;

// --- The machine

// The first number after `key` in a file of lines; `otherwise` when there is none.
double number_in(const std::string& path, const std::string& key, double otherwise) {
  std::ifstream stream(path);
  std::string word;
  while (stream >> word) {
    double number = 0;
    if (word == key && stream >> number) return number;
  }
  return otherwise;
}

double number_in(const std::string& path) {
  std::ifstream stream(path);
  double number = 0;
  return stream >> number ? number : kNoLimit;  // "max" is not a number
}

// The smallest limit of a file of this process's control group and of the groups around it.
double group_limit(const std::string& controller, const std::string& file_of_v1,
                   const std::string& file_of_v2) {
  std::ifstream groups("/proc/self/cgroup");
  double least = kNoLimit;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
    for (std::filesystem::path group = line.substr(second + 1);; group = group.parent_path()) {
      least =
          std::min(least, number_in(root + group.string() + "/" + (v2 ? file_of_v2 : file_of_v1)));
      if (group == group.parent_path()) break;
    }
  }
  return least;
}

double resource_limit(int resource, bool hard) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return kNoLimit;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? kNoLimit : static_cast<double>(value);
}

double available_memory() {
  constexpr double kKiB = 1024;
  const std::string path = "/proc/meminfo";
  const double free = number_in(path, "MemAvailable:", kNoLimit);
  return kKiB * (free + number_in(path, "SwapFree:", 0));
}

double address_space_left() {
  const double pages = number_in("/proc/self/statm");  // of this process, whose copies workers are
  return resource_limit(RLIMIT_AS, false) - pages * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
}

double thread_limit() {
  const double all = std::min(number_in("/proc/sys/kernel/threads-max"),
                              group_limit("pids", "pids.max", "pids.max"));
  return ::geteuid() == 0 ? all : std::min(all, resource_limit(RLIMIT_NPROC, false));
}

// --- The case

// Sizes of the batch; all 0 when its file cannot be read, which the golden says.
struct BatchSizes {
  int64_t samples = 0, length = 0, longest = 0;
};

BatchSizes batch_sizes(const CaseSpec& spec) {
  const DataSpec& data = spec.data;
  if (data.file.empty()) {
    const int64_t longest =
        data.lengths.empty() ? data.seq_len : *std::ranges::max_element(data.lengths);
    return {data.batch_size, std::max(data.seq_len, longest), longest};
  }
  try {
    const at::Tensor ids = SafetensorsFile::open(data.file).get("input_ids");
    const at::IntArrayRef sizes = ids.sizes();
    return sizes.size() == 2 ? BatchSizes{sizes[0], sizes[1], 1} : BatchSizes{};
  } catch (const Error&) {
    return {};
  }
}

// The tokens that a rank with the most samples has of one microbatch. Where sequences are packed or
// dealt by length, and in a policy, whose stages have sizes of their own, one sequence is the
// least.
double least_tokens(const CaseSpec& spec) {
  const BatchSizes sizes = batch_sizes(spec);
  const ParallelSpec& parallel = spec.parallel;
  const auto parts = static_cast<double>(parallel.ranks(Share::kPositions));
  if (spec.is(ModelWorkload::kPolicy) || spec.batching.kind != BatchingKind::kFixed) {
    return static_cast<double>(sizes.longest) / parts;
  }
  const int64_t shares = parallel.ranks(Share::kSamples);
  const int64_t share = (sizes.samples + shares - 1) / shares;
  const int64_t count = spec.micro_batch_size > 0 ? std::min(spec.micro_batch_size, share) : share;
  return static_cast<double>(count) * static_cast<double>(sizes.length) / parts;
}

// Elements of the model's weights; fewer ranks hold those of experts.
struct ParameterCounts {
  double experts = 0, others = 0;
  double all() const { return experts + others; }
};

ParameterCounts parameter_counts(const ModelConfig& config) {
  ParameterCounts counts;
  for (const auto& [name, shape] : weight_shapes(config)) {
    double& count = name.find(".experts.") != std::string::npos ? counts.experts : counts.others;
    count += static_cast<double>(c10::multiply_integers(shape));
  }
  return counts;
}

double wide_bytes(const CaseSpec& spec) {  // of an element that the optimizer updates
  return spec.precision == Precision::kFloat64 ? 8 : 4;
}

double element_bytes(const CaseSpec& spec) {
  const bool wide = spec.precision == Precision::kFloat64 || spec.precision == Precision::kFloat32;
  return wide ? wide_bytes(spec) : 2;
}

// The least that a rank keeps of one microbatch: for the backward of each layer the inputs of its
// norms and linears, and the logits with their gradient. Recomputed layers keep less: one layer is
// counted. Scoring keeps nothing: its largest single step is counted.
double activation_bytes(const CaseSpec& spec, const ModelConfig& config) {
  const auto parts = static_cast<double>(spec.parallel.ranks(Share::kModel));
  const double gate = 3 * static_cast<double>(config.intermediate_size) / parts;
  const double heads =
      static_cast<double>(config.num_attention_heads + config.num_key_value_heads) / parts;
  const double stream = static_cast<double>(config.hidden_size);
  const double logits = 2 * static_cast<double>(config.vocab_size) / parts * wide_bytes(spec);
  const double tokens = least_tokens(spec);
  if (spec.is(ModelWorkload::kLogprobs)) {
    return tokens * std::max(logits, (stream + gate) * element_bytes(spec));
  }
  const double residual = spec.parallel.sequence_parallel ? stream / parts : stream;
  const DiscardedOutputs discarded = spec.parallel.discarded_outputs;
  const bool both = discarded == DiscardedOutputs::kBoth;
  // With sequence parallelism a linear keeps what it has gathered.
  const bool frees_norms = (both || discarded == DiscardedOutputs::kNorms) &&
                           !(spec.parallel.sequence_parallel && spec.parallel.tp > 1);
  const double of_norms = frees_norms ? 0 : 2 * stream;
  const double of_gate = both || discarded == DiscardedOutputs::kActivations ? 2. / 3 * gate : gate;
  const double of_layer =
      of_norms + 2 * residual + 2 * heads * static_cast<double>(config.head_dim) + of_gate;
  const bool recomputed = spec.parallel.activation_checkpointing != CheckpointedRegions::kNone;
  const double layers = recomputed ? 1 : static_cast<double>(config.num_hidden_layers);
  return tokens * (layers * of_layer * element_bytes(spec) + logits);
}

double states_per_parameter(const OptimizerSpec& optimizer) {
  if (optimizer.kind != OptimizerKind::kSgd) return 2;
  return optimizer.momentum > 0 ? 1 : 0;
}

// How many ranks hold each element of an expert; `dense` hold each of the others.
double expert_copies(const ParallelSpec& parallel, double dense) {
  if (parallel.ep == 1 && parallel.etp == 1) return dense;
  if (parallel.data_parallel == DataParallelKind::kFsdp) return 1;
  if (parallel.data_parallel == DataParallelKind::kHybrid) {
    return static_cast<double>(parallel.fsdp.replicate_size);
  }
  return static_cast<double>(parallel.mesh().size("edp"));
}

// What all ranks hold at once. Those that exchange activations in every layer hold theirs at the
// same time; of the others, one may be done before the next begins. The stages of a policy may do
// without gradients.
double world_bytes(const CaseSpec& spec, const ModelConfig& config) {
  const Mesh mesh = spec.parallel.mesh();
  plan_lines(config, mesh,
             world::tensor_parallel_options(spec.parallel));  // throws as the ranks do
  const auto ranks = static_cast<double>(mesh.world_size());
  const std::string axis = world::shard_axes_of(spec.parallel).shard;
  const bool sharded = !axis.empty();
  const double parts =
      static_cast<double>(spec.parallel.ranks(Share::kModel) * (sharded ? mesh.size(axis) : 1));
  const double wide = wide_bytes(spec);
  const double held = sharded ? wide : element_bytes(spec);
  // Parameters of all ranks.
  const ParameterCounts counts = parameter_counts(config);
  const double all =
      ranks / parts * counts.others + counts.experts * expert_copies(spec.parallel, ranks / parts);
  if (spec.is(ModelWorkload::kPolicy)) return all * held;
  const auto shares = static_cast<double>(spec.parallel.ranks(Share::kSamples));
  const double together = sharded ? ranks : ranks / shares;
  const double activations = together * activation_bytes(spec, config);
  if (spec.is(ModelWorkload::kLogprobs)) return all * held + activations;
  const double masters = held < wide ? wide : 0;
  const double states = spec.steps > 1 ? states_per_parameter(spec.optimizer) * wide : 0;
  return all * (held + masters + states) + std::max(activations, all * wide);
}

// Weights, and in training their gradients and the optimizer's state, in float64; the activations
// of the whole batch.
double golden_bytes(const CaseSpec& spec, const ModelConfig& config) {
  constexpr double kFloat64 = 8;
  const double states = spec.optimizer.kind != OptimizerKind::kSgd ? 2 : 0;
  const double copies = spec.is(ModelWorkload::kTrain) ? 2 + states : 1;
  const double parameters = parameter_counts(config).all() * kFloat64 * copies;
  if (spec.is(ModelWorkload::kPolicy)) return parameters;
  CaseSpec alone = spec;
  alone.parallel = {};
  alone.precision = Precision::kFloat64;
  alone.micro_batch_size = spec.is(ModelWorkload::kLogprobs) ? spec.sample_rows : 0;
  alone.batching = {};
  return parameters + activation_bytes(alone, config);
}

// --- Both

constexpr const char* kAnyway = "or start it anyway with --ignore-limits";

[[noreturn]] void too_large(const std::string& what, const std::string& fix) {
  throw_bad_input(what, fix + ", " + kAnyway);
}

constexpr const char* kSmallerMesh = "choose a smaller mesh, raise the limit";
constexpr const char* kSmallerSizes =
    "choose smaller sizes, or a smaller run.train_micro_batch_size";

void check_memory(const std::string& who, double needed, double there,
                  const std::string& fix = kSmallerSizes) {
  if (needed <= there) return;
  too_large(fmt::format("{} at least {:.2f} GiB of memory, and {:.2f} GiB are available", who,
                        needed / kGiB, std::max(there, 0.0) / kGiB),
            fix);
}

// What the process of an emulated world holds besides tensors: for each rank its thread, its
// communicators and its records, for each pair of ranks the places of a call. Measured with dp = 16
// to 256: 0.36 MiB and 1.2 KiB.
double emulated_bytes(const CaseSpec& spec) {
  if (spec.world.backend != Backend::kEmulated) return 0;
  const auto ranks = static_cast<double>(spec.parallel.world_size());
  return ranks * (0.36 * (1 << 20)) + ranks * ranks * 1200;
}

// Open files of the process that starts the workers: its own, and a socket, a pipe and a pidfd of
// each worker. Measured: 27 with 4 rank processes, 63 with 16.
constexpr double kOwnFiles = 12, kFilesOfWorker = 3;

// Threads and descriptors, and the address space of stacks.
void check_ranks(const CaseSpec& spec, double bytes, const MachineLimits& there) {
  const auto ranks = static_cast<double>(spec.parallel.world_size());
  const bool emulated = spec.world.backend == Backend::kEmulated;
  const std::string fix = kSmallerMesh;
  if (ranks > there.threads) {
    too_large(fmt::format("{} ranks need as many {}, and {:.0f} are allowed", ranks,
                          emulated ? "threads" : "processes", there.threads),
              fix + " (ulimit -u, pids.max)");
  }
  const double workers = emulated ? 1 : ranks;
  const double files = kOwnFiles + kFilesOfWorker * workers;
  if (files > there.descriptors) {
    too_large(fmt::format("{:.0f} {} at least {:.0f} open files, and {:.0f} are allowed", workers,
                          emulated      ? "process of ranks needs"
                          : workers > 1 ? "rank processes need"
                                        : "rank process needs",
                          files, there.descriptors),
              fix + " (ulimit -n)");
  }
  const double stack = std::min(resource_limit(RLIMIT_STACK, false), double{8 << 20});
  const double mapped = emulated ? bytes + ranks * stack : bytes / ranks;
  if (mapped <= there.address_space) return;
  too_large(fmt::format("{} to map at least {:.2f} GiB, and ulimit -v allows {:.2f} GiB more",
                        emulated ? "the process of the ranks needs" : "each rank needs",
                        mapped / kGiB, std::max(there.address_space, 0.0) / kGiB),
            fix + " (ulimit -v)");
}

// Calls `measure` with the model's config; 0 where the ranks refuse the model, or there is none.
template <class Measure>
double of_model(const CaseSpec& spec, const Measure& measure) {
  if (!is_model_workload(spec.workload) || spec.world.device != DeviceKind::kCpu) return 0;
  try {
    return measure(ModelConfig::from_json(spec.model));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRefused) throw;
    return 0;
  }
}

}  // namespace

MachineLimits machine_limits() {
  return {.memory = std::min(available_memory(),
                             group_limit("memory", "memory.limit_in_bytes", "memory.max")),
          .address_space = address_space_left(),
          .threads = thread_limit(),
          .descriptors = resource_limit(RLIMIT_NOFILE, true),
          .cores = world::usable_cores()};
}

void check_world_limits(const CaseSpec& spec, const MachineLimits& there) {
  const double bytes =
      of_model(spec, [&](const ModelConfig& config) { return world_bytes(spec, config); });
  check_memory("the ranks need", bytes + emulated_bytes(spec), there.memory);
  check_ranks(spec, bytes, there);
}

void check_processes(Backend backend, int64_t ranks, const MachineLimits& there) {
  constexpr double kOfProcess = 4 << 20;  // measured with 4 and 16 Gloo ranks: 5.3 to 7 MiB
  if (backend == Backend::kEmulated) return;
  const auto count = static_cast<double>(ranks);
  check_memory(fmt::format("{} rank processes need", ranks), kOfProcess * count, there.memory,
               "choose a smaller mesh");
  if (count <= kProcessesPerCore * there.cores) return;
  too_large(fmt::format("{} rank processes would share {}, {:.0f} on each, and at most {} on each "
                        "are started",
                        ranks, count_of(static_cast<int64_t>(there.cores), "core"),
                        count / there.cores, kProcessesPerCore),
            "choose a smaller mesh");
}

std::string crowd_warning(const CaseSpec& spec) {
  const auto cores = static_cast<int64_t>(world::usable_cores());
  const int64_t ranks = spec.parallel.world_size();
  if (ranks <= kRanksPerCore * cores) return "";
  const int64_t samples = batch_sizes(spec).samples;
  return fmt::format("warning: {} ranks, {}{}: the ranks share the cores, so this may take long\n",
                     ranks, samples == 0 ? "" : count_of(samples, "sample") + ", ",
                     count_of(cores, "core"));
}

double golden_need(const CaseSpec& spec) {
  return of_model(spec, [&](const ModelConfig& config) { return golden_bytes(spec, config); });
}

void check_golden_limits(const CaseSpec& spec, const MachineLimits& there) {
  check_memory("the golden needs", golden_need(spec), std::min(there.memory, there.address_space));
}

void check_room(const std::string& option, const std::string& folder, double bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return;
  const double there = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (bytes <= there) return;
  too_large(fmt::format("{} {}: at least {:.0f} KiB will be written, and the disk has room for "
                        "{:.0f} KiB",
                        option, folder, bytes / 1024, there / 1024),
            "name a folder on another disk");
}

double report_bytes(const CaseSpec&) { return 2048; }

double dump_bytes(const CaseSpec& spec) {
  const double copies = spec.is(ModelWorkload::kLogprobs) ? 0 : 2 * 8;  // gradients and parameters
  return of_model(
      spec, [&](const ModelConfig& config) { return copies * parameter_counts(config).all(); });
}

double save_bytes(const CaseSpec& spec) {
  const double width = spec.precision == Precision::kFloat64 ? 8 : 4;
  return of_model(
      spec, [&](const ModelConfig& config) { return width * parameter_counts(config).all(); });
}

}  // namespace shardproof::sim::run
