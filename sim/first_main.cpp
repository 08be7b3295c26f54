// shardproof-first: what a first verdict needs of the program. A fresh clone builds it in less
// time.
#include "sim/program/start/start.h"

int main(int argc, char** argv) {
  namespace sim = shardproof::sim;
  sim::program::end_program(
      sim::program::start_program(argc, argv, sim::proofs::built_in_workloads()));
}
