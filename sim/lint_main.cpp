// shardproof-lint: `shardproof lint` before the program is built. It needs no LibTorch.
#include <CLI/CLI.hpp>
#include <iostream>

#include "base/error.h"
#include "sim/case/scenario/read_text.h"
#include "sim/lint/lint.h"
#include "sim/lint/scenario_files.h"

namespace shardproof::sim {
namespace {

int run(int argc, char** argv) {
  std::vector<std::string> paths;
  CLI::App app("Checks scenario files, without running them: all errors with line and column");
  app.name("shardproof lint");
  app.add_option("scenarios", paths, "Scenario files, and folders of them (default: scenarios/)");
  try {
    app.parse(argc, argv);
    const std::string table = find_in_repository("scenarios/workloads.json");
    return lint(paths, known_workloads_from_json(read_json_object(table)));
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "shardproof: " << error.what() << '\n';
    return 2;
  } catch (const Error& error) {
    std::cerr << "shardproof: " << error.what() << '\n';
    return 2;
  }
}

}  // namespace
}  // namespace shardproof::sim

int main(int argc, char** argv) { return shardproof::sim::run(argc, argv); }
