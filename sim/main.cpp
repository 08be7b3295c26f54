// The program with the workloads of the sharded stack's own layers.
#include "sim/program/program.h"

int main(int argc, char** argv) {
  namespace sim = shardproof::sim;
  sim::program::end_program(
      sim::program::run_program(argc, argv, sim::proofs::built_in_workloads()));
}
