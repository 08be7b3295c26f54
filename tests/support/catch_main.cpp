// The main function of every test binary.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // Gloo's ranks are threads here; a closed socket is an error
  // c10d's flight recorder adds groups to a map without a lock: ranks as threads crash in it.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
  return Catch::Session().run(argc, argv);
}
