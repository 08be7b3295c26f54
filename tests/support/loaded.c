// Loads a program once and starts it many times: what stands behind loaded.py.
//
// Preloaded into a program, this waits where its libraries are loaded and their constructors have
// run, before its own and before main, and forks it for each call. With -DCLIENT it is the program
// that makes one such call: it hands its words, its environment, its folder, its limits, its cores
// and its files 0 to 2 over, and ends as that fork ends.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kCalls = 256, kFailed = 125 };
extern char** environ;

struct Head {
  uint32_t arguments, variables, bytes;
  mode_t mask;
  struct rlimit limits[RLIM_NLIMITS];
  cpu_set_t cores;
};

static struct sockaddr_un address_of(const char* path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path, path, sizeof address.sun_path - 2);
  return address;
}

#ifdef CLIENT

static size_t add(char* to, const char* text) {
  const size_t size = strlen(text) + 1;
  if (to) memcpy(to, text, size);
  return size;
}

// The folder, the words and the environment one after another; returns their size.
static size_t all_texts(char* to, const char* folder, char** words, struct Head* head) {
  size_t size = add(to, folder);
  head->arguments = head->variables = 0;
  for (char** one = words; *one; ++one, ++head->arguments) size += add(to ? to + size : NULL, *one);
  for (char** one = environ; *one; ++one) {
    if (strncmp(*one, "LOADED_AT=", 10) == 0) continue;
    size += add(to ? to + size : NULL, *one);
    ++head->variables;
  }
  return size;
}

int main(int argc, char** argv) {
  (void)argc;
  const struct sockaddr_un address = address_of(getenv("LOADED_AT"));
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  char* folder = getcwd(NULL, 0);
  struct Head head;
  if (!folder || connect(server, (const struct sockaddr*)&address, sizeof address) != 0)
    return kFailed;
  head.bytes = (uint32_t)all_texts(NULL, folder, argv, &head);
  head.mask = umask(0);
  for (int i = 0; i < RLIM_NLIMITS; ++i) getrlimit(i, &head.limits[i]);
  sched_getaffinity(0, sizeof head.cores, &head.cores);
  char* texts = malloc(head.bytes);
  all_texts(texts, folder, argv, &head);
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(3 * sizeof(int))];
  } control = {0};
  struct iovec part = {&head, sizeof head};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS,
  rights->cmsg_len = CMSG_LEN(3 * sizeof(int));
  memcpy(CMSG_DATA(rights), (int[]){0, 1, 2}, 3 * sizeof(int));
  if (sendmsg(server, &message, 0) != sizeof head) return kFailed;
  for (size_t sent = 0; sent < head.bytes;) {
    const ssize_t more = send(server, texts + sent, head.bytes - sent, MSG_NOSIGNAL);
    if (more <= 0) return kFailed;
    sent += (size_t)more;
  }
  int status = 0;
  if (recv(server, &status, sizeof status, MSG_WAITALL) != sizeof status) return kFailed;
  if (WIFSIGNALED(status)) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  return WEXITSTATUS(status);
}

#else

typedef int Main(int, char**, char**);
typedef int Start(Main*, int, char**, void (*)(void), void (*)(void), void (*)(void), void*);

// What becomes of a fork: the words of its call and their number.
struct Call {
  int argc;
  char** argv;
};

static int receive(int client, struct Head* head, int* files) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(3 * sizeof(int))];
  } control;
  struct iovec part = {head, sizeof *head};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (recvmsg(client, &message, MSG_CMSG_CLOEXEC) != sizeof *head || !CMSG_FIRSTHDR(&message))
    return 0;
  memcpy(files, CMSG_DATA(CMSG_FIRSTHDR(&message)), 3 * sizeof(int));
  return 1;
}

static char** cut(char** text, uint32_t count) {
  char** all = calloc(count + 1, sizeof *all);
  for (uint32_t i = 0; i < count; ++i, *text += strlen(*text) + 1) all[i] = *text;
  return all;
}

// In the fork.
static struct Call become(int client, const struct Head* head, const int* files) {
  char* text = malloc(head->bytes);
  if (recv(client, text, head->bytes, MSG_WAITALL) != (ssize_t)head->bytes) _exit(kFailed);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // with the server, which ends with the test
  for (int i = 0; i < 3; ++i) dup2(files[i], i);
  close_range(3, ~0U, 0);
  if (chdir(text) != 0) _exit(kFailed);
  umask(head->mask);
  for (int i = 0; i < RLIM_NLIMITS; ++i) setrlimit(i, &head->limits[i]);
  sched_setaffinity(0, sizeof head->cores, &head->cores);
  text += strlen(text) + 1;
  struct Call call = {(int)head->arguments, cut(&text, head->arguments)};
  environ = cut(&text, head->variables);
  return call;
}

static struct Call serve(int server) {
  // Where calls come, and a pipe that only the test holds the other end of.
  struct pollfd ends[2 * kCalls + 2] = {{.fd = server, .events = POLLIN}, {.fd = 0}};
  pid_t pids[kCalls];
  int calls = 0;  // the ends of a call: its process, and its client
  for (;;) {
    if (poll(ends, 2 * (nfds_t)calls + 2, -1) < 0 && errno != EINTR) _exit(kFailed);
    if (ends[1].revents) _exit(0);
    for (int i = calls - 1; i >= 0; --i) {
      struct pollfd *process = &ends[2 * i + 2], *client = &ends[2 * i + 3];
      if (client->revents)
        kill(pids[i], SIGKILL), client->fd = ~client->fd;  // its caller has killed it
      if (!process->revents) continue;
      int status = 0;
      waitpid(pids[i], &status, 0);
      const int at = client->fd < 0 ? ~client->fd : client->fd;
      (void)!send(at, &status, sizeof status, MSG_NOSIGNAL);
      close(at), close(process->fd);
      memcpy(process, &ends[2 * calls], 2 * sizeof *process);
      pids[i] = pids[--calls];
    }
    if (!(ends[0].revents & POLLIN) || calls == kCalls) continue;
    struct Head head;
    int files[3];
    const int client = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0) continue;
    if (!receive(client, &head, files)) {
      close(client);
      continue;
    }
    const pid_t pid = fork();
    if (pid == 0) return become(client, &head, files);
    for (int i = 0; i < 3; ++i) close(files[i]);
    ends[2 * calls + 2] =
        (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    ends[2 * calls + 3] = (struct pollfd){.fd = client, .events = POLLRDHUP};
    pids[calls++] = pid;
  }
}

int __libc_start_main(Main* main, int argc, char** argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void* stack_end) {
  Start* start = (Start*)dlsym(RTLD_NEXT, "__libc_start_main");
  const char* path = getenv("LOADED_AT");
  if (path) {
    struct sockaddr_un address = address_of(path);
    strcat(address.sun_path, "~");  // until it listens
    const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(server, (const struct sockaddr*)&address, sizeof address) != 0 ||
        listen(server, kCalls) != 0 || rename(address.sun_path, path) != 0)
      _exit(kFailed);
    const struct Call call = serve(server);
    argc = call.argc, argv = call.argv;
  }
  return start(main, argc, argv, init, fini, rtld_fini, stack_end);
}

#endif
