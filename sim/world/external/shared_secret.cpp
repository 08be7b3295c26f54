#include "sim/world/external/shared_secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/owned_fd.h"

namespace shardproof::sim::world {
namespace {

constexpr size_t kFewestCharacters = 16, kMostCharacters = 4096;
constexpr char kHowToSet[] =
    "run `export SHARDPROOF_SECRET=$(openssl rand -hex 32)` once and give every rank the same "
    "value "
    "(docs/cluster.md says how with torchrun, mpirun and srun)";

[[noreturn]] void bad_secret(const std::string& what, const std::string& fix = kHowToSet) {
  throw_bad_input(what, fix);
}

std::string checked(std::string secret, const std::string& source) {
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < kFewestCharacters || secret.size() > kMostCharacters) {
    bad_secret(fmt::format("the secret in {} has {} characters, which is not between {} and {}",
                           source, secret.size(), kFewestCharacters, kMostCharacters));
  }
  return secret;
}

// Of a file or a folder: nobody but its owner may read or write it, and that is this user or root.
void check_private(int fd, const std::string& path, bool is_folder = false) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) bad_secret(path + " cannot be read");
  if (!S_ISREG(info.st_mode) && !is_folder) bad_secret(path + " is not a file");
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    bad_secret(fmt::format("{} belongs to user {}", path, info.st_uid));
  }
  if ((info.st_mode & 077) != 0) {
    bad_secret(
        fmt::format("{} has mode {:04o}, with which other users may read it", path,
                    info.st_mode & 07777),
        fmt::format("run `chmod go= {}`, and make a new secret if others have read it", path));
  }
}

std::string content(int fd, const std::string& path) {
  if (fd < 0) bad_secret(fmt::format("{}: {}", path, std::strerror(errno)));
  check_private(fd, path);
  std::string bytes(kMostCharacters + 2, '\0');
  const ssize_t got = ::read(fd, bytes.data(), bytes.size());
  if (got < 0) bad_secret(fmt::format("{}: {}", path, std::strerror(errno)));
  bytes.resize(static_cast<size_t>(got));
  return checked(std::move(bytes), path);
}

std::string folder_of_user(const GetVariable& variable) {
  const std::string runtime = variable("XDG_RUNTIME_DIR").value_or("");
  if (std::error_code error; std::filesystem::is_directory(runtime, error)) {
    return runtime + "/shardproof";  // containers name one that they lack
  }
  return fmt::format("/tmp/shardproof-{}", ::geteuid());
}

std::string random_secret() {
  unsigned char bytes[32];
  char text[2 * sizeof(bytes) + 1];
  randombytes_buf(bytes, sizeof(bytes));
  return sodium_bin2hex(text, sizeof(text), bytes, sizeof(bytes));
}

// Writes a new secret beside its place and links it there: the first of several ranks wins, and no
// rank reads half of one.
void make_secret(int folder, const std::string& path) {
  const std::string secret = random_secret();
  const std::string beside = "new-" + random_secret().substr(0, 16);
  const OwnedFd file(
      ::openat(folder, beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool written = file.valid() && ::write(file.get(), secret.data(), secret.size()) ==
                                           static_cast<ssize_t>(secret.size());
  const bool linked =
      written && (::linkat(folder, beside.c_str(), folder, "secret", 0) == 0 || errno == EEXIST);
  const int why = errno;
  ::unlinkat(folder, beside.c_str(), 0);
  if (!linked) bad_secret(fmt::format("{} cannot be written: {}", path, std::strerror(why)));
}

std::string secret_of_user(const std::string& path) {
  ::mkdir(path.c_str(), 0700);  // or it is there
  const OwnedFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid()) bad_secret(fmt::format("{}: {}", path, std::strerror(errno)));
  check_private(folder.get(), path, true);
  const auto open_secret = [&folder] {
    return OwnedFd(
        ::openat(folder.get(), "secret", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  };
  OwnedFd file = open_secret();
  if (!file.valid() && errno == ENOENT) {
    make_secret(folder.get(), path + "/secret");
    file = open_secret();
  }
  return content(file.get(), path + "/secret");
}

}  // namespace

std::string shared_secret(const ExternalPlace& place, const GetVariable& variable) {
  SHARDPROOF_ASSERT(sodium_init() >= 0, "libsodium does not start");
  if (const auto secret = variable("SHARDPROOF_SECRET")) {
    return checked(*secret, "SHARDPROOF_SECRET");
  }
  if (const auto path = variable("SHARDPROOF_SECRET_FILE")) {
    return content(OwnedFd(::open(path->c_str(), O_RDONLY | O_CLOEXEC)).get(), *path);
  }
  if (place.on_one_host) return secret_of_user(folder_of_user(variable));
  bad_secret(fmt::format("rank {} meets the others at {}, and no secret keeps strangers out",
                         place.rank, place.master_addr));
}

}  // namespace shardproof::sim::world
