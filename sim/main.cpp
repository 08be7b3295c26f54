// The program with the workloads of the sharded stack's own layers.
#include "sim/program/program.h"

int main(int argc, char** argv) {
  namespace sim = shardproof::sim;
  sim::end_program(sim::run_program(argc, argv, sim::built_in_workloads()));
}
