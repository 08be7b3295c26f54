#include "sim/cli/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include "base/failure.h"

namespace shardproof::sim::cli {

namespace {

void say_interrupted(int signal) {
  constexpr std::string_view kSaid = "shardproof: interrupted\n";
  const ssize_t ignored = ::write(STDERR_FILENO, kSaid.data(), kSaid.size());
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
