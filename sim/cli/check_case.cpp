#include "sim/cli/check_case.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "sim/case/option.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/case/scenario/read_text.h"
#include "sim/case/scenario/schema.h"

namespace shardproof::sim {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void bad_option(const std::string& what, const std::string& fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = what, .fix = fix});
}

Mesh mesh_of(const CheckArguments& arguments) {
  const Mesh mesh = Mesh::parse(arguments.mesh);
  if (!arguments.ulysses) return mesh;
  const int64_t given = mesh.size("ulysses");
  if (given != 1 && given != *arguments.ulysses) {
    bad_option(fmt::format("--mesh says ulysses={}, --ulysses says {}", given, *arguments.ulysses),
               "give one of them");
  }
  return Mesh::training(mesh.size("dp"), mesh.size("cp"), *arguments.ulysses, mesh.size("tp"));
}

void set_mesh(const CheckArguments& arguments, ParallelSpec& parallel) {
  const Mesh mesh = mesh_of(arguments);
  parallel.dp = mesh.size("dp");
  parallel.cp = mesh.size("cp");
  parallel.ulysses = mesh.size("ulysses");
  parallel.tp = mesh.size("tp");
  if (arguments.world_size && *arguments.world_size != mesh.world_size()) {
    bad_option(fmt::format("--world-size is {}, but the mesh {} has {} ranks",
                           *arguments.world_size, mesh.describe(), mesh.world_size()),
               "change --mesh or --world-size");
  }
}

// Sets how samples become microbatches: by number, in packed rows, or within a token budget.
void set_batching(const CheckArguments& arguments, CaseSpec& spec) {
  if (arguments.packed && arguments.dynamic_tokens) {
    bad_option("--packed and --dynamic-batching are both given", "give one of them");
  }
  if (arguments.packed) spec.batching.kind = "packed";
  if (!arguments.dynamic_tokens) return;
  spec.batching.kind = "dynamic";
  spec.batching.tokens = *arguments.dynamic_tokens;
}

// Makes `path` absolute. Throws now for errors that would otherwise stop the run at its end.
std::string folder_to_make(const std::string& option, const std::string& path) {
  if (path.empty()) return "";
  const fs::path whole = fs::absolute(path).lexically_normal();
  if (fs::exists(whole) && !fs::is_directory(whole)) {
    bad_option(fmt::format("{} {} is no folder", option, path), "name a folder");
  }
  std::error_code error;
  fs::create_directories(whole, error);
  if (error || ::access(whole.c_str(), W_OK) != 0) {
    bad_option(fmt::format("{} {}: the folder cannot be made or written", option, path),
               "name a folder of your own");
  }
  return whole.string();
}

}  // namespace

// A worker writes the file at the end; this reports now what would stop it then.
std::string writable_path(const std::string& option, const std::string& path) {
  if (path.empty()) return "";
  const fs::path whole = fs::absolute(path).lexically_normal();
  if (fs::is_directory(whole))
    bad_option(fmt::format("{} {} is a folder", option, path), "name a file");
  if (!fs::is_directory(whole.parent_path())) {
    bad_option(
        fmt::format("{} {}: there is no folder {}", option, path, whole.parent_path().string()),
        "make the folder first");
  }
  if (::access(whole.parent_path().c_str(), W_OK) != 0) {
    bad_option(fmt::format("{} {}: the folder cannot be written", option, path),
               "name a file in a folder of your own");
  }
  return whole.string();
}

void set_flags(const CheckArguments& arguments, CaseSpec& spec) {
  for (const CaseOption& option : case_options()) {
    const std::string text = arguments.flag(option.flag_name());
    if (!text.empty()) option.set(spec, Schema::checked_flag(option, text));
  }
}

CaseSpec make_check_case(const CheckArguments& arguments) {
  CaseSpec spec = read_case_folder(arguments.case_path);
  set_mesh(arguments, spec.parallel);
  for (const CaseOption& option : case_options()) {
    if (*option.flag.otherwise != '\0') option.set(spec, option.flag.otherwise);
  }
  set_flags(arguments, spec);
  if (!arguments.custom_plan.empty()) {
    spec.parallel.custom_plan = read_json_object(arguments.custom_plan);
  }
  spec.data.uneven = true;  // only scenarios refuse uneven shares
  set_batching(arguments, spec);
  spec.dump_file = writable_path("--dump", arguments.dump);
  spec.save_folder = folder_to_make("--save", arguments.save);
  return spec;
}

}  // namespace shardproof::sim
