// The main function of every test binary.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <csignal>

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // Gloo's ranks are threads here; a closed socket is an error
  return Catch::Session().run(argc, argv);
}
