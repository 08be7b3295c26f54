// The program: knows rank, golden and launch together, and hands them to the command line.
#include "golden/golden_main.h"
#include "sim/cli/cli.h"
#include "sim/cli/make_world.h"

int main(int argc, char** argv) {
  return shardproof::sim::run_cli(argc, argv,
                                  {.golden_main = shardproof::golden::golden_main,
                                   .make_world = shardproof::sim::make_world});
}
