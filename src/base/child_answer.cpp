#include "base/child_answer.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>

namespace shardproof {
namespace {

[[noreturn]] void answer(const std::function<std::string()>& question, int pipe) {
  std::string text;
  try {
    text = question();
  } catch (const std::exception& error) {
    text = error.what();
  }
  const bool written = ::write(pipe, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::_exit(written ? 0 : 1);
}

std::string all_of(int pipe) {
  std::string text;
  char part[512];
  for (ssize_t got = 0; (got = ::read(pipe, part, sizeof(part))) > 0;) {
    text.append(part, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

std::string answer_of_child(const std::function<std::string()>& question) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe can be made";
  const pid_t child = ::fork();
  if (child == 0) answer(question, ends[1]);
  ::close(ends[1]);
  const std::string text = all_of(ends[0]);
  ::close(ends[0]);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return "no process can be started";
  if (WIFSIGNALED(status)) {
    return "the process that looked was ended by signal " + std::to_string(WTERMSIG(status));
  }
  return status == 0 ? text : "the process that looked ended without an answer";
}

}  // namespace shardproof
