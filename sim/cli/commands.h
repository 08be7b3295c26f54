// The commands. Each returns its exit status; what a person caused is thrown as Error(kBadInput).
#pragma once

#include "sim/cli/arguments.h"
#include "sim/launch/world_pool.h"

namespace shardproof::sim {

int run_command(const RunArguments& arguments, const std::string& command_line, WorldPool& pool);
int list_command(const RunArguments& arguments);
int describe_command(const RunArguments& arguments);
int check_command(const CheckArguments& arguments, const std::string& command_line, WorldPool& pool);
int judge_command(const CheckArguments& arguments, WorldPool& pool);
int golden_command(const CheckArguments& arguments, WorldPool& pool);
int report_command(const std::string& folder);
int mutants_command(const MutantArguments& arguments);
int doctor_command();
int schema_command();  // prints the JSON Schema of scenario files

}  // namespace shardproof::sim
