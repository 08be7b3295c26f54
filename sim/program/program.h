// The whole program with given workloads: `shardproof` itself, or a program with its own workloads.
#pragma once

#include "sim/program/start/start.h"
#include "sim/uses/proofs/workloads.h"

namespace shardproof::sim::program {

// As start_program, with every command. A program ends with end_program.
int run_program(int argc, char** argv, const proofs::Workloads& workloads);

}  // namespace shardproof::sim::program
