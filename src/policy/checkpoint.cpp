#include "policy/checkpoint.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/read_text.h"
#include "base/text_file.h"
#include "policy/publish_folder.h"
#include "policy/saved_streams.h"
#include "policy/tokenizer_files.h"
#include "tensor/safetensors.h"
#include "tensor/shard.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr const char* kWriting = ".writing-";
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStreamsFile = "rng.safetensors";
constexpr const char* kStateFile = "state.json";

std::string step_name(int64_t step) { return fmt::format("step_{:08}", step); }

// The step of a folder name; none for a name that no save gives.
std::optional<int64_t> step_of(const std::string& folder_name) {
  const size_t digits = folder_name.find('_') + 1;
  int64_t step = 0;
  std::from_chars(folder_name.data() + digits, folder_name.data() + folder_name.size(), step);
  return step_name(step) == folder_name ? std::optional<int64_t>(step) : std::nullopt;
}

struct StatePart {
  const char* prefix;
  at::Tensor OptimizerState::*tensor;
};
constexpr StatePart kStateParts[] = {{"exp_avg.", &OptimizerState::exp_avg},
                                     {"exp_avg_sq.", &OptimizerState::exp_avg_sq},
                                     {"momentum_buffer.", &OptimizerState::momentum_buffer}};

// The contents of the files, on every rank, because all take part in gathering them.
struct Contents {
  json state = {};
  NamedTensors model = {}, optimizer = {}, streams = {};
  std::string tokenizer_folder = {};
};

int64_t most_optimizer_steps(const Trainer& trainer) {
  int64_t most = 0;
  for (const OptimizerState& state : trainer.states()) most = std::max(most, state.step);
  return most;
}

// By name, the parameters that took fewer steps than others because they are or were frozen.
json fewer_optimizer_steps(const Trainer& trainer) {
  json fewer = json::object();
  const int64_t most = most_optimizer_steps(trainer);
  for (size_t i = 0; i < trainer.parameters().size(); ++i) {
    const int64_t steps = trainer.states()[i].step;
    if (steps < most) fewer[trainer.parameters()[i]->name] = steps;
  }
  return fewer;
}

// The full tensor on every rank, from its pieces: an all_gather over the world of all of them,
// including copies. A piece may have no elements.
at::Tensor full_tensor(const at::Tensor& piece, const std::vector<int64_t>& global_shape,
                       const Layout& layout, MeshComm& comm, const std::string& label) {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = comm.mesh();
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    shapes.push_back(layout.local_shape(global_shape, mesh, rank));
    sizes.push_back(c10::multiply_integers(shapes.back()));
  }
  const at::Tensor all = comm.world().all_gather(piece.detach().reshape(-1), 0, label, sizes);
  std::vector<at::Tensor> pieces = all.split_with_sizes(sizes);
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    pieces[rank] = pieces[rank].view(shapes[rank]);
  }
  return reassemble(pieces, global_shape, layout, mesh);
}

Contents gather_contents(const Trainer& trainer, MeshComm& comm, const CheckpointExtras& extras) {
  Contents contents{.state = {{"format", kFormat},
                              {"step", trainer.step_count()},
                              {"schedule_steps", trainer.schedule_steps()},
                              {"optimizer_steps", most_optimizer_steps(trainer)},
                              {"fewer_optimizer_steps", fewer_optimizer_steps(trainer)},
                              {"data_position", extras.data_position}},
                    .tokenizer_folder = extras.tokenizer_folder};
  if (trainer.options().loss_scale.enabled) {
    contents.state["loss_scale"] = {{"scale", trainer.loss_scale().scale},
                                    {"good_steps", trainer.loss_scale().good_steps}};
  }
  if (extras.rng != nullptr) {
    contents.state["rng"] = gather_streams(*extras.rng, comm, trainer.device(), contents.streams);
  }
  const auto add = [&](NamedTensors& file, const std::string& name, const at::Tensor& piece,
                       const Parameter& parameter) {
    const at::Tensor full = full_tensor(piece.to(trainer.device()), parameter.global_shape,
                                        parameter.layout, comm, "checkpoint " + name);
    if (comm.rank() == 0) file.emplace_back(name, full.cpu());
  };
  for (size_t i = 0; i < trainer.parameters().size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    add(contents.model, parameter.name, trainer.masters()[i], parameter);
    for (const StatePart& part : kStateParts) {
      const at::Tensor& piece = trainer.states()[i].*part.tensor;
      if (!piece.defined()) continue;
      add(contents.optimizer, part.prefix + parameter.name, piece, parameter);
    }
  }
  return contents;
}

// Waits until a file or folder is on the disk.
void sync_to_disk(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) {
    throw_bad_input(fmt::format("{} cannot be written: {}", path.string(), std::strerror(error)),
                    "check the disk");
  }
}

void write_contents(const fs::path& folder, const Contents& contents) {
  std::vector<std::string> names = {kModelFile, kOptimizerFile};
  write_safetensors((folder / kModelFile).string(), contents.model);
  write_safetensors((folder / kOptimizerFile).string(), contents.optimizer);
  if (contents.state.contains("rng")) {
    write_safetensors((folder / kStreamsFile).string(), contents.streams);
    names.emplace_back(kStreamsFile);
  }
  if (!contents.tokenizer_folder.empty()) {
    for (const std::string& name : copy_tokenizer(contents.tokenizer_folder, folder.string())) {
      names.push_back(name);
    }
  }
  json state = contents.state;
  state["files"] = json::object();
  for (const std::string& name : names) {
    state["files"][name] = fs::file_size(folder / name);
    sync_to_disk(folder / name);
  }
  write_text_file((folder / kStateFile).string(), state.dump(1) + "\n");
  sync_to_disk(folder / kStateFile);
  sync_to_disk(folder);
}

void remove_unfinished(const fs::path& root) {
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.path().filename().string().starts_with(kWriting)) fs::remove_all(entry.path());
  }
}

void write_checkpoint(const fs::path& root, const Contents& contents, int64_t step) {
  fs::create_directories(root);
  remove_unfinished(root);
  const fs::path writing = root / (kWriting + step_name(step));
  fs::create_directory(writing);
  write_contents(writing, contents);
  publish_folder(writing.string(), (root / step_name(step)).string());
  sync_to_disk(root);
}

json read_state(const fs::path& folder) {
  std::ifstream file;
  if (is_plain_file(folder / kStateFile)) file.open(folder / kStateFile);
  const json state = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!file.is_open() || !state.is_object() || state.value("format", json()) != kFormat ||
      !state.value("files", json()).is_object() ||
      !state.value("step", json()).is_number_integer()) {
    throw_bad_input(fmt::format("{} is not a checkpoint of format {}", folder.string(), kFormat),
                    "name a folder that a save has made");
  }
  for (const auto& [name, bytes] : state["files"].items()) {
    std::error_code error;
    const auto size = fs::file_size(folder / name, error);
    if (error || bytes != size) {
      throw_bad_input(fmt::format("{}: {} has not the {} bytes that were saved", folder.string(),
                                  name, bytes.dump()),
                      "copy the checkpoint again, or load another one");
    }
  }
  return state;
}

// Returns `otherwise` for a number that earlier versions did not write.
int64_t number_of(const json& state, const char* key, int64_t otherwise) {
  const auto found = state.find(key);
  return found != state.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

// None when the run that saved it had no loss scaling.
std::optional<LossScaleState> loss_scale_of(const json& state) {
  const auto found = state.find("loss_scale");
  if (found == state.end() || !found->is_object()) return std::nullopt;
  const json scale = found->value("scale", json());
  if (!scale.is_number() || scale.get<double>() <= 0) return std::nullopt;
  return LossScaleState{.scale = scale.get<double>(),
                        .good_steps = number_of(*found, "good_steps", 0)};
}

bool is_whole(const fs::path& folder) {
  try {
    read_state(folder);
  } catch (const Error&) {
    return false;
  }
  return true;
}

// Throws on every rank when one has a problem.
void agree(const std::exception_ptr& problem, const std::string& folder, MeshComm& comm,
           at::Device device) {
  const int64_t all_well = comm.mesh().world_size();
  const at::Tensor first = comm.world().all_reduce(
      at::scalar_tensor(problem ? comm.rank() : all_well, at::kLong).to(device), ReduceOp::kMin,
      "checkpoint read");
  if (problem) std::rethrow_exception(problem);
  if (first.item<int64_t>() == all_well) return;
  throw_bad_input(
      fmt::format("rank {} cannot load {}, so no rank does", first.item<int64_t>(), folder),
      "see what that rank says");
}

at::Tensor piece_of_file(const SafetensorsFile& file, const std::string& name,
                         const Parameter& parameter, const at::Tensor& like, const MeshComm& comm) {
  const at::Tensor full = file.get(name);
  if (full.sizes() != at::IntArrayRef(parameter.global_shape)) {
    throw_bad_input(fmt::format("{}: {} has another shape than the model's", file.path(), name),
                    "load the checkpoint of this model");
  }
  return cut(full, parameter.layout, comm.mesh(), comm.rank()).to(like.options());
}

struct SavedState {
  json state;
  int64_t step = 0;
  std::vector<at::Tensor> masters = {};
  std::vector<OptimizerState> states = {};
};

// This rank's pieces.
SavedState read_checkpoint(const std::string& folder, const Trainer& trainer,
                           const MeshComm& comm) {
  SavedState saved{.state = read_state(folder)};
  const SafetensorsFile model = SafetensorsFile::open((fs::path(folder) / kModelFile).string());
  const SafetensorsFile optimizer =
      SafetensorsFile::open((fs::path(folder) / kOptimizerFile).string());
  if (model.names().size() != trainer.parameters().size()) {
    throw_bad_input(fmt::format("{} has {} weights, the model {}", model.path(),
                                model.names().size(), trainer.parameters().size()),
                    "load the checkpoint of this model");
  }
  saved.step = saved.state["step"].get<int64_t>();
  const int64_t most_steps = number_of(saved.state, "optimizer_steps", saved.step);
  const json fewer_steps = saved.state.value("fewer_optimizer_steps", json::object());
  for (size_t i = 0; i < trainer.parameters().size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    const at::Tensor& like = trainer.masters()[i];
    saved.masters.push_back(piece_of_file(model, parameter.name, parameter, like, comm));
    OptimizerState& state = saved.states.emplace_back();
    state.step = number_of(fewer_steps, parameter.name.c_str(), most_steps);
    for (const StatePart& part : kStateParts) {
      const std::string name = part.prefix + parameter.name;
      if (!optimizer.contains(name)) continue;
      state.*part.tensor = piece_of_file(optimizer, name, parameter, like, comm);
    }
  }
  return saved;
}

}  // namespace

std::string save_checkpoint(const std::string& root, const Trainer& trainer, MeshComm& comm,
                            const CheckpointExtras& extras) {
  const Contents contents = gather_contents(trainer, comm, extras);
  std::string problem;
  if (comm.rank() == 0) {
    try {
      write_checkpoint(root, contents, trainer.step_count());
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  const at::Tensor failed = comm.world().all_reduce(
      at::scalar_tensor(problem.empty() ? 0 : 1, at::kLong).to(trainer.device()), ReduceOp::kMax,
      "checkpoint written");
  if (failed.item<int64_t>() != 0) {
    throw_bad_input(
        "the checkpoint was not written: " + (problem.empty() ? "see what rank 0 says" : problem),
        "name a folder that can be written");
  }
  return (fs::path(root) / step_name(trainer.step_count())).string();
}

std::optional<std::string> latest_checkpoint(const std::string& root) {
  std::map<int64_t, fs::path> by_step;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    if (const auto step = step_of(entry.path().filename().string())) by_step[*step] = entry.path();
  }
  for (auto newest = by_step.rbegin(); newest != by_step.rend(); ++newest) {
    if (is_whole(newest->second)) return newest->second.string();
  }
  return std::nullopt;
}

LoadedCheckpoint load_checkpoint(const std::string& folder, Trainer& trainer, MeshComm& comm,
                                 RngTracker* rng) {
  std::optional<SavedState> saved;
  LoadedCheckpoint loaded;
  std::optional<RngStates> before;
  if (rng != nullptr) before = rng->states();
  std::exception_ptr problem;
  try {
    saved = read_checkpoint(folder, trainer, comm);
    loaded = {.step = saved->step, .data_position = number_of(saved->state, "data_position", 0)};
    trainer.check_states(saved->states);
    if (rng != nullptr) {
      if (!saved->state.contains("rng")) {
        throw_bad_input(folder + " has no random streams", "load one that was saved with them");
      }
      const auto streams = SafetensorsFile::open((fs::path(folder) / kStreamsFile).string());
      loaded.streams_begun_anew =
          set_streams(saved->state["rng"], streams, saved->step, comm, *rng);
    }
  } catch (const std::exception&) {
    problem = std::current_exception();
  }
  try {
    agree(problem, folder, comm, trainer.device());
  } catch (...) {
    if (before) rng->set_states(*before);
    throw;
  }
  trainer.restore(saved->masters, std::move(saved->states), saved->step,
                  number_of(saved->state, "schedule_steps", saved->step));
  trainer.set_loss_scale(loss_scale_of(saved->state));
  return loaded;
}

}  // namespace shardproof
