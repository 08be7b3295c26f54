// Where the secret of a world comes from, and what is refused.
#include "sim/world/external/shared_secret.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <thread>
#include <vector>

#include "tests/support/said_by.h"
#include "tests/support/scratch_folder.h"

namespace shardproof::sim::world {
namespace shared_secret_test {

const std::string kGood = "0123456789abcdef";

ExternalPlace place_on(bool one_host) {
  ExternalPlace place;
  place.rank = 3;
  place.master_addr = one_host ? "127.0.0.1" : "10.1.2.3";
  place.on_one_host = one_host;
  return place;
}

std::string secret_of(const ExternalPlace& place, std::map<std::string, std::string> variables) {
  return shared_secret(place, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

std::string refusal(const ExternalPlace& place,
                    const std::map<std::string, std::string>& variables) {
  return tests::told_by(ErrorKind::kBadInput, [&] { secret_of(place, variables); });
}

TEST_CASE("the secret is that of the environment, or of a file that it names", "[external]") {
  const ScratchFolder folder;
  folder.write("secret", kGood + "\n");
  const std::string file = folder.path() + "/secret";
  ::chmod(file.c_str(), 0600);
  CHECK(secret_of(place_on(false), {{"SHARDPROOF_SECRET", kGood}}) == kGood);
  CHECK(secret_of(place_on(true), {{"SHARDPROOF_SECRET", kGood}}) == kGood);
  CHECK(secret_of(place_on(false), {{"SHARDPROOF_SECRET_FILE", file}}) == kGood);
}

TEST_CASE("without a secret ranks of several hosts do not start, and hear how to set it",
          "[external]") {
  const std::string text = refusal(place_on(false), {{"XDG_RUNTIME_DIR", "/tmp"}});
  CHECK_THAT(text, Catch::Contains("rank 3 meets the others at 10.1.2.3") &&
                       Catch::Contains("export SHARDPROOF_SECRET=$(openssl rand -hex 32)"));
}

TEST_CASE("a secret that is short, or that others may read, is refused", "[external]") {
  const ScratchFolder folder;
  folder.write("secret", kGood);
  const std::string file = folder.path() + "/secret";
  const auto with_mode = [&](mode_t mode) {
    ::chmod(file.c_str(), mode);
    return refusal(place_on(false), {{"SHARDPROOF_SECRET_FILE", file}});
  };
  CHECK(with_mode(0600).empty());
  CHECK(with_mode(0400).empty());
  for (const mode_t mode : {0640, 0604, 0620, 0610, 0644}) {
    CHECK_THAT(with_mode(mode), Catch::Contains("other users may read it"));
  }
  CHECK_THAT(refusal(place_on(true), {{"SHARDPROOF_SECRET", kGood.substr(1)}}),
             Catch::Contains("SHARDPROOF_SECRET has 15 characters"));
  CHECK_THAT(refusal(place_on(true), {{"SHARDPROOF_SECRET", ""}}), Catch::Contains("0 characters"));
  CHECK_THAT(refusal(place_on(true), {{"SHARDPROOF_SECRET_FILE", folder.path() + "/none"}}),
             Catch::Contains("No such file"));
  CHECK_THAT(refusal(place_on(true), {{"SHARDPROOF_SECRET_FILE", folder.path()}}),
             Catch::Contains(folder.path()));
}

TEST_CASE("ranks of one host that start at once make one secret, for their user alone",
          "[external]") {
  const ScratchFolder folder;
  std::vector<std::string> secrets(16);
  std::vector<std::thread> ranks;
  for (std::string& secret : secrets) {
    ranks.emplace_back([&secret, &folder] {
      secret = secret_of(place_on(true), {{"XDG_RUNTIME_DIR", folder.path()}});
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(secrets == std::vector<std::string>(16, secrets[0]));
  CHECK(secrets[0].size() == 64);
  const std::string made = folder.path() + "/shardproof";
  const auto mode_of = [](const std::string& path) {
    struct stat info {};
    ::stat(path.c_str(), &info);
    return info.st_mode & 0777;
  };
  CHECK(mode_of(made) == 0700);
  CHECK(mode_of(made + "/secret") == 0600);
  CHECK(std::distance(std::filesystem::directory_iterator(made), {}) == 1);  // nothing is left over
}

TEST_CASE("a folder or a file that others could have made is not trusted", "[external]") {
  const ScratchFolder open_to_all, linked;
  const auto refused = [](const ScratchFolder& folder) {
    return refusal(place_on(true), {{"XDG_RUNTIME_DIR", folder.path()}});
  };
  std::filesystem::create_directory(open_to_all.path() + "/shardproof");
  ::chmod((open_to_all.path() + "/shardproof").c_str(), 0777);
  CHECK_THAT(refused(open_to_all), Catch::Contains("mode 0777"));
  std::filesystem::create_directory_symlink("/etc", linked.path() + "/shardproof");
  CHECK_THAT(refused(linked), Catch::Contains("Not a directory") || Catch::Contains("symbolic"));
  const ScratchFolder link_inside;
  link_inside.write("elsewhere", kGood);
  std::filesystem::create_directory(link_inside.path() + "/shardproof");
  ::chmod((link_inside.path() + "/shardproof").c_str(), 0700);
  std::filesystem::create_symlink("../elsewhere", link_inside.path() + "/shardproof/secret");
  CHECK_THAT(refused(link_inside), Catch::Contains("symbolic links"));
}

}  // namespace shared_secret_test
}  // namespace shardproof::sim::world
