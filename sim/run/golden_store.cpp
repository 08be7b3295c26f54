#include "sim/run/golden_store.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/error.h"
#include "base/shortage.h"
#include "sim/case/names.h"
#include "sim/case/record/magnitude.h"
#include "sim/case/reference.h"
#include "sim/case/runners.h"

namespace shardproof::sim::run {

namespace {

// The limit of goldens in memory: a sweep over meshes uses the same few again and again.
constexpr int64_t kMaxBytes = int64_t{1} << 30;

// What the keys of goldens with other members than are due end with.
constexpr const char *kMeasuredKey = "measured", *kFewKey = "few_members";

OwnedFd make_memory_file() {
  const int fd = ::memfd_create("golden", MFD_CLOEXEC);
  if (fd < 0) throw_shortage("no shared memory is left for a golden", errno);
  return OwnedFd(fd);
}

int64_t size_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_size : 0;
}

// What a golden ends with that cannot be started here.
world::TaskOutcome refusal(const std::exception& error) {
  const bool is_input = dynamic_cast<const Error*>(&error) != nullptr;
  return {.kind = is_input ? ResultKind::kBadInput : ResultKind::kInternal,
          .message = error.what()};
}

}  // namespace

GoldenStore::GoldenStore(world::WorldPool& pool, bool use_cache,
                         std::optional<MachineLimits> limits)
    : pool_(pool),
      use_cache_(use_cache),
      limits_(limits),
      cache_(use_cache ? GoldenCache::default_folder() : std::filesystem::path()) {}

GoldenStore::~GoldenStore() {
  if (kept_) cache_.trim();
}

std::shared_ptr<GoldenStore::Golden> GoldenStore::from_cache(const std::string& full_key) const {
  if (!use_cache_ || full_key.empty()) return nullptr;
  auto found = cache_.find(full_key);
  if (!found) return nullptr;
  auto golden = std::make_shared<Golden>();
  golden->fd = std::move(*found);
  golden->outcome.ok = true;
  return golden;
}

std::shared_ptr<GoldenStore::Entry> GoldenStore::known(const std::string& key,
                                                       const std::string& full_key) {
  const auto at = std::ranges::find(
      entries_, key, [](const auto& entry) -> const auto& { return entry->key; });
  if (at != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, at);
    return entries_.front();
  }
  auto cached = from_cache(full_key);
  if (!cached) return nullptr;
  cached->has_few = key.ends_with(kFewKey);
  const auto entry = std::make_shared<Entry>();
  entry->key = key;
  entry->golden = cached;
  entry->ready = true;
  entry->bytes = size_of(cached->fd.get());
  entries_.push_front(entry);
  forget_old();
  return entry;
}

void GoldenStore::get(const CaseSpec& spec, const Ready& ready, Members members) {
  const std::shared_ptr<Entry> entry = find_or_start(spec, members);
  if (entry->ready) {
    ready(entry->golden);
  } else {
    entry->waiting.push_back(ready);
  }
}

void GoldenStore::start(const CaseSpec& spec, Members members) { find_or_start(spec, members); }

bool GoldenStore::is_computing(const CaseSpec& spec, Members members) {
  const std::shared_ptr<Entry> entry = known(keys_of(spec, members));
  return entry && !entry->ready;
}

GoldenStore::Keys GoldenStore::keys_of(const CaseSpec& spec, Members members) {
  const bool of_ranks = spec.reference.is_set();
  const bool of_model = is_model_workload(spec.workload);
  const bool few = members == Members::kFew && of_model && spec.precision != Precision::kFloat64;
  Keys keys{.all = golden_key(spec), .outlive_runs = of_model && !of_ranks};
  if (of_ranks) keys.all += reference_key(spec);
  if (members == Members::kMeasured) keys.all += std::string("\n") + kMeasuredKey;
  if (few) keys.few = keys.all + "\n" + kFewKey;
  return keys;
}

// It covers the code of the models' goldens, not that of a registered workload.
std::string GoldenStore::full_key(const Keys& keys, const std::string& key) {
  return keys.outlive_runs ? GoldenCache::full_key(key) : "";
}

std::shared_ptr<GoldenStore::Entry> GoldenStore::known(const Keys& keys) {
  const auto entry = known(keys.all, full_key(keys, keys.all));
  return entry || keys.few.empty() ? entry : known(keys.few, full_key(keys, keys.few));
}

std::shared_ptr<GoldenStore::Entry> GoldenStore::find_or_start(const CaseSpec& spec,
                                                               Members members) {
  const Keys keys = keys_of(spec, members);
  if (auto entry = known(keys)) return entry;
  const bool few = !keys.few.empty();
  const std::string& key = few ? keys.few : keys.all;
  const auto entry = std::make_shared<Entry>();
  entry->key = key;
  entry->golden = std::make_shared<Golden>();
  entry->golden->has_few = few;
  entries_.push_front(entry);
  const auto settles = [this, living = std::weak_ptr(living_), entry,
                        full_key = full_key(keys, key)](world::TaskOutcome outcome) {
    if (!living.expired()) settle(entry, full_key, std::move(outcome));
  };
  try {
    entry->golden->fd = make_memory_file();
    if (spec.reference.is_set()) {
      run_reference(entry, spec, members);
    } else {
      if (limits_) check_golden_limits(spec, *limits_);
      pool_.start_golden(spec, members, entry->golden->fd.get(), "", settles);
    }
  } catch (const std::exception& error) {  // later, so that a case waits for it
    pool_.post([settles, outcome = refusal(error)] { settles(outcome); });
  }
  return entry;
}

int64_t GoldenStore::computing() const {
  return std::ranges::count_if(entries_, [](const auto& entry) { return !entry->ready; });
}

void GoldenStore::run_reference(const std::shared_ptr<Entry>& entry, const CaseSpec& spec,
                                Members members) {
  const bool measured = members == Members::kMeasured;
  if (limits_) check_world_limits(reference_case(spec, ""), *limits_);
  const auto pieces =
      std::make_shared<const PiecesFolder>(reference_bytes(spec, measured), limits_.has_value());
  entry->golden->pieces = pieces;
  run_reference(entry, std::make_shared<ReferenceTensors>(spec, pieces->path()), kExactRun,
                members == Members::kFew ? kFewMembers - 1 : last_reference_run(spec, measured));
}

void GoldenStore::run_reference(const std::shared_ptr<Entry>& entry,
                                const std::shared_ptr<ReferenceTensors>& tensors, int64_t run,
                                int64_t last) {
  pool_.start_case(tensors->begin(run), -1, false,
                   [this, entry, tensors, run, last](const world::WorldRun& ran) {
                     world::TaskOutcome outcome = tensors->take(run, ran.endings);
                     const bool whole = outcome.ok;
                     if (whole && run == last) outcome = tensors->write_index(entry->golden->fd);
                     // Later, so that the next one finds the world idle.
                     pool_.post([this, entry, tensors, run, last, outcome = std::move(outcome)] {
                       if (!outcome.ok || run == last) return settle(entry, "", outcome);
                       try {
                         run_reference(entry, tensors, run + 1, last);
                       } catch (const std::exception& error) {
                         settle(entry, "", refusal(error));
                       }
                     });
                     return whole;
                   });
}

void GoldenStore::settle(const std::shared_ptr<Entry>& entry, const std::string& full_key,
                         world::TaskOutcome outcome) {
  entry->golden->outcome = std::move(outcome);
  entry->bytes = size_of(entry->golden->fd.get());
  if (entry->golden->pieces) entry->bytes += entry->golden->pieces->bytes();
  entry->ready = true;
  const bool cached = use_cache_ && !full_key.empty();
  if (entry->golden->outcome.ok && cached) {
    cache_.keep(full_key, entry->golden->fd.get());
    kept_ = true;
  }
  const std::vector<Ready> waiting = std::move(entry->waiting);
  entry->waiting.clear();
  // Ended from outside, or started ahead when something was short: the next case that needs it
  // computes it again.
  const world::TaskOutcome& made = entry->golden->outcome;
  if (!made.ok && (was_ended(made) || waiting.empty())) entries_.remove(entry);
  forget_old();
  for (const Ready& ready : waiting) ready(entry->golden);
}

std::shared_ptr<const GoldenStore::Golden> GoldenStore::make(const CaseSpec& spec,
                                                             const std::string& dump_path) {
  auto golden = std::make_shared<Golden>();
  if (spec.reference.is_set()) {
    golden->outcome = {.kind = ResultKind::kBadInput,
                       .message =
                           "the case is compared with another layout, so it has no golden; "
                           "remove the reference"};
    return golden;
  }
  try {
    if (limits_) check_golden_limits(spec, *limits_);
  } catch (const Error& error) {
    golden->outcome = refusal(error);
    return golden;
  }
  golden->fd = make_memory_file();
  golden->outcome = pool_.run_golden(spec, Members::kFew, golden->fd.get(), dump_path);
  return golden;
}

// Goldens in use stay open through their shared pointers.
void GoldenStore::forget_old() {
  int64_t bytes = 0, count = 0;
  for (auto at = entries_.begin(); at != entries_.end();) {
    bytes += (*at)->bytes;
    ++count;
    const bool fits = bytes <= kMaxBytes && count <= kMostKept;
    const bool keep = at == entries_.begin() || !(*at)->ready || fits;
    at = keep ? std::next(at) : entries_.erase(at);
  }
}

}  // namespace shardproof::sim::run
