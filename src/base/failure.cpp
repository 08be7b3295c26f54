#include "base/failure.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <sstream>

#include "base/shortage.h"
#include "base/utf8.h"

namespace shardproof {

namespace {

constexpr size_t kMaxMessageLine = 1200;  // bytes

}  // namespace

int exit_status_of(const Error& error) {
  if (error.kind() == ErrorKind::kRefused) return 4;
  return error.kind() == ErrorKind::kBadInput ? 2 : 3;
}

void print_failure(const std::string& message) {
  std::string text;
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    text += (text.empty() ? "" : "\n") + printable(line, kMaxMessageLine);
  }
  std::cerr << "shardproof: " << text << std::endl;
}

int run_or_say_why(const std::function<int()>& run) {
  try {
    return run();
  } catch (const Error& error) {
    print_failure(error.what());
    return exit_status_of(error);
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string path = error.path1().string();
    print_failure(fmt::format("{}: {}; check the path and its permissions",
                              path.empty() ? "the current folder" : path, error.code().message()));
    return 2;
  } catch (const std::exception& error) {
    if (const std::string shortage = shortage_text(error); !shortage.empty()) {
      print_failure(shortage);
      return 2;
    }
    print_failure(std::string("a fault in shardproof itself: ") + error.what());
    return 5;
  }
}

}  // namespace shardproof
