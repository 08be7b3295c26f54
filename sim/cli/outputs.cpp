#include "sim/cli/outputs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/failure.h"
#include "sim/report/run_folder.h"
#include "tensor/safetensors_reader.h"

namespace shardproof::sim::cli {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const std::string& option, const std::string& path, const std::string& why,
                         const std::string& fix) {
  throw_bad_input(fmt::format("{} {}: {}", option, path, why), fix);
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

// Or is the folder itself.
bool lies_in(const fs::path& path, const fs::path& folder) {
  const std::string whole = fs::weakly_canonical(folder).string() + "/";
  return (fs::weakly_canonical(path).string() + "/").starts_with(whole);
}

bool is_dump(const fs::path& file) {
  try {
    const auto metadata = SafetensorsReader::open(file.string()).metadata();
    const auto writer = metadata.find("writer");
    return writer != metadata.end() && writer->second == "shardproof";
  } catch (const Error&) {
    return false;
  }
}

bool is_of_a_model(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == "config.json" || name == "model.safetensors.index.json" ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

// Files that a command reads beside each other.
void add_folder(const fs::path& folder, std::vector<fs::path>& inputs) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (is_of_a_model(entry.path())) inputs.push_back(entry.path());
  }
}

// By custom a dash is standard output. Links that name each other and names that are too long lead
// nowhere; where a part of the path is absent or a file, the caller says what it needs.
void require_place(const std::string& option, const std::string& path) {
  if (path == "-") {
    refuse(option, path, "this option does not write to standard output",
           "name a place, or write ./- for one of this name");
  }
  std::error_code error;  // not for a part that is absent
  if (!fs::exists(path, error) && error) {
    refuse(option, path, error.message(), "name another place");
  }
}

}  // namespace

const OwnFile kOwnDump = {"a file that --dump wrote", is_dump};

std::vector<fs::path> inputs_of(const CaseSpec& spec) {
  std::vector<fs::path> inputs;
  for (const std::string& file : {spec.file, spec.data.file}) {
    if (!file.empty()) inputs.emplace_back(file);
  }
  if (!spec.file.empty() && fs::is_directory(spec.file)) {
    inputs.push_back(fs::path(spec.file) / "case.json");
    add_folder(spec.file, inputs);
  }
  if (!spec.weights_folder.empty()) add_folder(spec.weights_folder, inputs);
  return inputs;
}

void require_two(const std::string& a, const std::string& b) {
  if (!same_file(a, b)) return;
  throw_bad_input(
      fmt::format("{} and {} are the same, and what is compared with itself is equal whatever it "
                  "holds",
                  a, b),
      "name the results of two computations");
}

std::string output_file(const std::string& option, const std::string& path,
                        const std::vector<fs::path>& inputs, bool force, const OwnFile& own) {
  if (path.empty()) return "";
  require_place(option, path);
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path folder = whole.parent_path();
  if (fs::is_directory(whole)) refuse(option, path, "this is a folder", "name a file");
  if (fs::exists(whole) && !fs::is_regular_file(whole)) {
    refuse(option, path, "this is a device, a socket or a pipe", "name a regular file");
  }
  if (!fs::is_directory(folder)) {
    if (fs::exists(folder)) {
      refuse(option, path, folder.string() + " is not a folder", "name a file in a folder");
    }
    refuse(option, path, fmt::format("there is no folder {}", folder.string()),
           "make the folder first");
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    refuse(option, path, "the folder cannot be written", "name a file in a folder of your own");
  }
  if (std::ranges::any_of(inputs, [&](const fs::path& input) { return same_file(input, whole); })) {
    refuse(option, path, "the same command reads this file", "name another file");
  }
  if (!force && fs::exists(whole) && !own.is(whole)) {
    refuse(option, path, fmt::format("this file would be replaced, and is not {}", own.what),
           "name another file, or add --force");
  }
  return whole.string();
}

std::string output_folder(const std::string& option, const std::string& path,
                          const std::vector<fs::path>& inputs, bool force) {
  if (path.empty()) return "";
  require_place(option, path);
  const fs::path whole = fs::absolute(path).lexically_normal();
  if (fs::exists(whole) && !fs::is_directory(whole)) {
    refuse(option, path, "this is not a folder", "name a folder");
  }
  std::error_code error;
  fs::create_directories(whole, error);
  if (error || ::access(whole.c_str(), W_OK) != 0) {
    refuse(option, path, "the folder cannot be made or written", "name a folder of your own");
  }
  const std::string why = "the same command reads files of this folder";
  for (const fs::path& input : inputs) {
    if (same_file(input.parent_path(), whole)) refuse(option, path, why, "name another folder");
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(whole)) {
    for (const fs::path& input : inputs) {  // by a link, too
      if (same_file(input, entry.path())) refuse(option, path, why, "name another folder");
    }
    if (force || is_of_a_model(entry.path())) continue;
    refuse(option, path,
           fmt::format("it holds {}, which is not of a model", entry.path().filename().string()),
           "name an empty folder or one of a saved model, or add --force");
  }
  return whole.string();
}

void require_apart(const std::string& option, const std::string& path, const std::string& other,
                   const std::string& folder) {
  if (path.empty() || folder.empty() || !lies_in(path, folder)) return;
  refuse(option, path, fmt::format("it lies in the folder of {}, {}", other, folder),
         "name a place outside of that folder");
}

std::string results_folder(const std::string& path, const std::vector<fs::path>& inputs,
                           bool force) {
  if (!path.empty()) require_place("--out", path);
  for (const fs::path& input : inputs) {
    if (path.empty() || !lies_in(input, path)) continue;
    const std::string why =
        same_file(input, path)
            ? fmt::format("--out {}: the same command reads this folder", path)
            : fmt::format("--out {} holds {}, which the same command reads", path, input.string());
    throw_bad_input(why, "name another folder with --out");
  }
  return report::create_run_folder(path, force);
}

namespace {

void say_interrupted(int signal) {
  constexpr std::string_view kMessage = "shardproof: interrupted\n";
  const ssize_t ignored = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  static_cast<void>(ignored);
  std::raise(signal);
}

}  // namespace

void prepare_interrupts() {
  struct sigaction now {};
  struct sigaction then {};
  then.sa_handler = say_interrupted;
  then.sa_flags = SA_RESETHAND;  // so that the raised signal ends the program
  for (const int signal : {SIGINT, SIGTERM}) {
    const bool known = ::sigaction(signal, nullptr, &now) == 0;
    if (known && now.sa_handler == SIG_DFL) ::sigaction(signal, &then, nullptr);
  }
}

void prepare_standard_files() {
  std::signal(SIGXFSZ, SIG_IGN);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {  // open() takes the lowest free number
    if (::fcntl(fd, F_GETFD) < 0) {
      ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

int status_of_output(int status) {
  const bool failed = !std::cout;
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  if (!failed && flushed && std::cout) return status;
  const bool lost = errno == 0 && ::write(STDOUT_FILENO, "\n", 1) == 1;  // else it says why
  const std::string why = lost ? "a part of it was lost" : std::strerror(errno);
  print_failure("standard output cannot be written: " + why +
                "; send it to a file or a program that takes it");
  return 2;
}

}  // namespace shardproof::sim::cli
