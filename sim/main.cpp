// The program: knows rank, golden and launch together, and hands them to the command line.
#include "golden/golden_main.h"
#include "sim/cli/cli.h"
#include "sim/rank/rank_main.h"

int main(int argc, char** argv) {
  return shardproof::sim::run_cli(argc, argv,
                                  {.rank_main = shardproof::sim::rank_main,
                                   .golden_main = shardproof::golden::golden_main});
}
