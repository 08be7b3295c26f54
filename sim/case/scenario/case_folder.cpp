#include "sim/case/scenario/case_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "base/families.h"
#include "base/read_text.h"
#include "base/utf8.h"
#include "sim/case/names.h"
#include "sim/case/scenario/blocks.h"
#include "sim/case/scenario/problems.h"

namespace shardproof::sim {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kMaxSteps = 100000;
constexpr int64_t kMaxCaseBytes = 1 << 20;
constexpr size_t kMaxShown = 80;  // bytes of a message that come from the file

// The wrong constants of case.json.
class WrongConstants {
 public:
  WrongConstants(const std::string& file, const std::string& text) : places_(file, text) {}

  // `block` is "" for a key of the whole file; `key` is "" for the block itself.
  void add(const std::string& block, const std::string& key, const std::string& problem) {
    const std::string where = block.empty() || key.empty() ? block + key : block + "." + key;
    std::vector<std::string> keys = {block, key};
    std::erase(keys, "");
    problems_.push_back(places_.error(
        keys, fmt::format("{} {}", printable(where, kMaxShown), problem), "mend case.json"));
  }

  void throw_them() const { throw_all(problems_); }

 private:
  JsonPlaces places_;
  std::vector<PlacedError> problems_;
};

// One object of case.json, whose constants are read by name; an absent or wrong constant keeps its
// value.
class Constants {
 public:
  Constants(WrongConstants& wrong, std::string place, json object)
      : wrong_(wrong), place_(std::move(place)), object_(std::move(object)) {
    if (object_.is_object()) return;
    fail("", "must be an object {...}");
    object_ = json::object();
  }

  // Reads a finite number with low <= value <= high.
  void number(const std::string& key, double& value, double low, double high) const {
    if (!object_.contains(key)) return;
    const json& given = object_[key];
    if (!given.is_number()) return fail(key, "must be a number, not " + shown(given));
    const double read = given.get<double>();
    if (!(read >= low && read <= high)) {
      return fail(key, fmt::format("is {}; it must be from {} to {}", shown(given), low, high));
    }
    value = read;
  }

  void count(const std::string& key, int64_t& value, int64_t low, int64_t high) const {
    if (!object_.contains(key)) return;
    const json& given = object_[key];
    const bool fits = given.is_number_integer() && given >= low && given <= high;
    if (!fits) {
      return fail(
          key, fmt::format("is {}; it must be an integer from {} to {}", shown(given), low, high));
    }
    value = given.get<int64_t>();
  }

  // Reads two numbers in [0, 1).
  void pair(const std::string& key, double& first, double& second) const {
    if (!object_.contains(key)) return;
    const json& given = object_[key];
    if (!given.is_array() || given.size() != 2) {
      return fail(key, "must be two numbers, [0.9, 0.999]");
    }
    for (const json& beta : given) {
      const bool fits = beta.is_number() && beta.get<double>() >= 0 && beta.get<double>() < 1;
      if (!fits) {
        return fail(key,
                    fmt::format("has {}; both must be numbers from 0 to below 1", shown(beta)));
      }
    }
    first = given[0].get<double>();
    second = given[1].get<double>();
  }

  // Reads the first word of `kind`, which must be the name of a value.
  template <NamedEnum Enum>
  void kind(Enum& value) const {
    if (!object_.contains("kind")) return;
    const json& given = object_["kind"];
    if (!given.is_string()) return fail("kind", "must be text, not " + shown(given));
    const std::string word = first_word(given.get<std::string>());
    const auto found = find_enum<Enum>(word);
    if (!found) {
      return fail("kind", fmt::format("is \"{}\"; {}", printable(word, kMaxShown),
                                      known_names(word, all_names<Enum>())));
    }
    value = *found;
  }

  // Refuses every other key, with the nearest known one. Other keys that hold text describe the
  // case, and are allowed unless they are nearly a known one.
  void nothing_else(const std::vector<std::string>& known) const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const bool misspelt = std::any_of(known.begin(), known.end(), [&key](const auto& name) {
        return std::min(key.size(), name.size()) > 3 && edit_distance(key, name) <= 2;
      });
      if (misspelt || !value.is_string()) fail(key, "is unknown; " + known_names(key, known));
    }
  }

  bool is_null(const std::string& key) const {
    return object_.contains(key) && object_[key].is_null();
  }

  void fail(const std::string& key, const std::string& problem) const {
    wrong_.add(place_, key, problem);
  }

 private:
  static std::string first_word(const std::string& text) {
    size_t begin = 0;
    while (begin < text.size() && std::isspace(static_cast<unsigned char>(text[begin]))) ++begin;
    size_t end = begin;
    const auto in_word = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; };
    while (end < text.size() && in_word(static_cast<unsigned char>(text[end]))) ++end;
    std::string word = text.substr(begin, end - begin);
    if (word.starts_with("torch.optim.")) word = word.substr(std::string("torch.optim.").size());
    return word;
  }

  // A value for a message: short, on one line.
  static std::string shown(const json& value) {
    return printable(value.dump(-1, ' ', true, json::error_handler_t::replace), kMaxShown);
  }

  WrongConstants& wrong_;
  std::string place_;
  json object_;
};

void read_loss(WrongConstants& wrong, const json& object, LossSpec& loss) {
  const Constants constants(wrong, "loss", object);
  constants.nothing_else({"kind", "eps", "beta"});
  constants.kind(loss.kind);
  constants.number("eps", loss.clip_eps, 0, 1e6);
  constants.number("beta", loss.kl_beta, -1e6, 1e6);
}

void read_optimizer(WrongConstants& wrong, const json& object, CaseSpec& spec) {
  const Constants constants(wrong, "optimizer", object);
  constants.nothing_else(
      {"kind", "lr", "betas", "eps", "weight_decay", "momentum", "max_norm", "steps"});
  OptimizerSpec& optimizer = spec.optimizer;
  constants.kind(optimizer.kind);
  if (optimizer.kind == OptimizerKind::kMuon) set_muon_defaults(optimizer);
  constants.number("lr", optimizer.lr, 0, 1e6);
  constants.pair("betas", optimizer.beta1, optimizer.beta2);
  constants.number("eps", optimizer.eps, 0, 1e6);
  constants.number("weight_decay", optimizer.weight_decay, 0, 1e6);
  if (!constants.is_null("momentum")) constants.number("momentum", optimizer.momentum, 0, 1e6);
  if (constants.is_null("max_norm")) {
    optimizer.max_norm = 0;
  } else {
    constants.number("max_norm", optimizer.max_norm, 0, 1e300);
  }
  constants.count("steps", spec.steps, 1, kMaxSteps);
}

// "a folder", where something that is not a file has the name of one; "" where nothing has it.
[[noreturn]] void no_file(const fs::path& path, const std::string& what) {
  const bool is_there = fs::exists(fs::symlink_status(path));
  throw_bad_input(is_there ? path.string() + " " + why_no_file(path)
                           : fmt::format("the case has no {}", path.string()),
                  "a case holds " + what);
}

void require_file(const fs::path& path, const std::string& what) {
  if (!fs::is_regular_file(path)) no_file(path, what);
}

void require_weights(const fs::path& folder) {
  const fs::path whole = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::is_regular_file(whole) || fs::is_regular_file(index)) return;
  const bool holds_whole = fs::exists(fs::symlink_status(whole));
  const bool holds_index = fs::exists(fs::symlink_status(index));
  no_file(holds_index && !holds_whole ? index : whole,
          "the full weights under Hugging Face names: model.safetensors, or the files that "
          "model.safetensors.index.json names");
}

}  // namespace

void leave_out_extra_heads(json& config) {
  for (const Architecture& known : known_architectures()) {
    const bool named = config.value("model_type", json()) == known.model_type ||
                       config.value("architectures", json()) == json::array({known.name});
    // A family that has extra heads by default is not one of transformers.
    if (named && family_traits(known.family).extra_heads == 0) {
      config.erase("num_nextn_predict_layers");
    }
  }
}

bool looks_like_case_folder(const std::string& path) {
  return fs::is_regular_file(fs::path(path) / "case.json") ||
         fs::is_regular_file(fs::path(path) / "config.json");
}

CaseSpec read_case_folder(const std::string& given) {
  const fs::path folder(given);
  if (!fs::exists(folder)) throw_bad_input(given + " does not exist", "name a case folder");
  if (!fs::is_directory(folder)) throw_bad_input(given + " is not a folder", "name a case folder");
  require_file(folder / "config.json", "a Hugging Face config.json");
  require_file(folder / "case.json",
               "case.json with the loss and the optimizer; {} takes the defaults");
  require_file(folder / "batch.safetensors",
               "batch.safetensors with input_ids, input_lengths and masks");
  require_weights(folder);

  CaseSpec spec;
  const fs::path whole = fs::absolute(folder).lexically_normal();
  const fs::path named = whole.has_filename() ? whole : whole.parent_path();
  spec.name = named.filename().string();
  spec.file = given;
  spec.model = read_json_object((folder / "config.json").string());
  leave_out_extra_heads(spec.model);
  spec.weights_folder = named.string();
  spec.data.file = (named / "batch.safetensors").string();
  const fs::path answers = folder / "expected.safetensors";
  if (fs::exists(fs::symlink_status(answers))) {
    require_file(answers, "the answers of another framework there, or nothing");
    spec.expected_file = (named / "expected.safetensors").string();
  }
  const std::string case_file = (folder / "case.json").string();
  const std::string text = read_text_file(case_file, kMaxCaseBytes);
  const json constants = parse_json_object(case_file, text);
  WrongConstants wrong(case_file, text);
  Constants(wrong, "", constants).nothing_else({"loss", "optimizer"});
  if (constants.contains("loss")) read_loss(wrong, constants["loss"], spec.loss);
  if (constants.contains("optimizer")) read_optimizer(wrong, constants["optimizer"], spec);
  wrong.throw_them();
  return spec;
}

}  // namespace shardproof::sim
