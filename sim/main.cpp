// The program with the workloads of the sharded stack's own layers.
#include "sim/program/program.h"

int main(int argc, char** argv) {
  return shardproof::sim::run_program(argc, argv, shardproof::sim::built_in_workloads());
}
