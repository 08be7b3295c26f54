// Makes the folder and fills it. results.json is written last, so its presence proves that the
// other files are complete.
#include "sim/report/run_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <utility>

#include "base/count_of.h"
#include "base/error.h"
#include "base/read_text.h"
#include "base/shortage.h"
#include "sim/report/earlier_run.h"
#include "sim/report/escape.h"
#include "sim/report/results_json.h"
#include "sim/report/timeline.h"

namespace shardproof::sim::report {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const fs::path& path, const std::string& why) {
  throw_bad_input(fmt::format("cannot write {}: {}", path.string(), why),
                  "make room there, or name a folder that can be written");
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) cannot_write(path, error.message());
  if (!fs::is_directory(path, error)) cannot_write(path, "a file of that name is in the way");
}

// Writes a whole file or none; `write` fills it.
template <class Write>
void write_file(const fs::path& path, const Write& write) {
  const fs::path part = path.string() + ".part";
  std::error_code error;
  fs::remove(part, error);  // of a run that was killed
  {
    std::ofstream stream(part, std::ios::binary | std::ios::trunc);
    write(stream);
    stream.close();
    if (!stream) {
      throw_if_too_many_files("cannot write " + path.string(), errno);
      cannot_write(path, std::strerror(errno));
    }
  }
  fs::rename(part, path, error);
  if (error) cannot_write(path, error.message());
}

void write_text(const fs::path& path, const std::string& text) {
  write_file(path, [&text](std::ostream& stream) { stream << text; });
}

// What a run leaves besides its journal.
constexpr const char* kFiles[] = {"results.json", "junit.xml", "timeline.json", "report.html",
                                  "validation.json"};
constexpr const char* kFolders[] = {"logs", "replay", "tensors", "relations"};

constexpr const char* kOurResults = "{\"format\": \"shardproof-results/";
constexpr const char* kOurValidation = "{\n \"format\": \"shardproof-validation/";

bool starts_with(const fs::path& file, const std::string& text) {
  if (!is_plain_file(file)) return false;
  std::ifstream stream(file, std::ios::binary);
  std::string head(text.size(), '\0');
  return stream.read(head.data(), static_cast<std::streamsize>(head.size())) && head == text;
}

// Our results or journal, and nothing that no run leaves.
bool is_of_a_run(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto is = [&](const char* known) { return name == known; };
    const bool known = std::ranges::any_of(kFiles, is) || std::ranges::any_of(kFolders, is) ||
                       name == "journal" || name.ends_with(".part");
    if (!known) return false;
  }
  if (holds_journal(folder.string())) return is_journal(folder.string());
  return starts_with(folder / "results.json", kOurResults) ||
         starts_with(folder / "validation.json", kOurValidation);
}

// What was written is on the disk, and not only on its way there.
void force_to_disk(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    throw_if_too_many_files("cannot write " + path.string(), errno);
    cannot_write(path, std::strerror(errno));
  }
  const bool done = ::fsync(fd) == 0 || errno == EINVAL;
  const int error = errno;
  ::close(fd);
  if (!done) cannot_write(path, std::strerror(error));
}

void remove_earlier(const fs::path& folder) {
  std::error_code error;
  for (const char* name : kFiles) fs::remove(folder / name, error);
  for (const char* name : kFolders) fs::remove_all(folder / name, error);
}

// `head`, this part of each case with a comma between them, `end`.
void join_parts(const fs::path& path, const std::string& head, JournalReader& journal,
                const char* kind, const char* end) {
  write_file(path, [&](std::ostream& stream) {
    stream << head;
    const char* between = "";
    for (const size_t number : journal.finished()) {
      stream << std::exchange(between, ",\n") << journal.text(kind, number);
    }
    stream << end;
  });
}

// Records are lines.
std::string in_one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// runs/20260131-120000-1: the first number that is free. mkdir decides between concurrent runs.
fs::path make_numbered_folder(const fs::path& parent) {
  make_folder(parent);
  const std::string time = fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(std::time(nullptr)));
  for (int n = 1;; ++n) {
    const fs::path path = parent / fmt::format("{}-{}", time, n);
    std::error_code error;
    if (fs::create_directory(path, error)) return path;
    if (error) cannot_write(path, error.message());
  }
}

// Makes the link `latest`, and says so where something else has its name. Other errors are ignored:
// the link is only a convenience.
void point_latest_at(const fs::path& folder) {
  const fs::path link = folder.parent_path() / "latest";
  const fs::path part = folder.parent_path() / (".latest-" + folder.filename().string());
  std::error_code error;
  fs::create_directory_symlink(folder.filename(), part, error);
  if (error) return;
  fs::rename(part, link, error);
  if (!error) return;
  fs::remove(part, error);
  std::cerr << fmt::format(
      "shardproof: {} is not a link and stays as it is; this run is in {}, and `report` without a "
      "folder reads {}\n",
      link.string(), folder.string(), link.string());
}

void write_logs(const fs::path& folder, const judge::CaseResult& result, const std::string& id) {
  std::map<int64_t, std::pair<const RankEnding*, const judge::RankReport*>> ranks;
  for (const auto& ending : result.endings) ranks[ending.rank].first = &ending;
  for (const auto& report : result.reports) ranks[report.rank].second = &report;
  if (ranks.empty()) return;
  make_folder(folder / log_folder(id));
  for (const auto& [rank, parts] : ranks) {
    write_text(folder / log_file(id, rank), rank_log(result, rank, parts.first, parts.second));
  }
}

void write_case(const fs::path& folder, const judge::CaseResult& result, const std::string& id,
                const RunInfo& info) {
  if (keeps_all(result, info)) write_logs(folder, result, id);
  if (wants_replay(result) && info.recorded.empty()) {
    make_folder(folder / "replay");
    write_text(
        folder / replay_file(id),
        to_json(result.spec).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  const std::string tensors = failing_tensors_file(result);
  if (!tensors.empty()) {
    make_folder(folder / "tensors");
    write_text(folder / tensor_file(id), tensors);
  }
}

}  // namespace

std::string case_id(size_t index, const CaseSpec& spec) {
  return fmt::format("{:03}-{}", index, file_slug(spec.name));
}

std::string create_run_folder(const std::string& out_dir, bool force) {
  if (out_dir.empty()) {
    const fs::path folder = make_numbered_folder("runs");
    point_latest_at(folder);
    return folder.string();
  }
  make_folder(out_dir);
  std::error_code error;
  if (!force && !fs::is_empty(out_dir, error) && !error && !is_of_a_run(out_dir)) {
    throw_bad_input(fmt::format("{} holds files that are not of a run", out_dir),
                    "name an empty folder or one of an earlier run with --out, or add --force");
  }
  return out_dir;
}

RunFiles::RunFiles(const std::string& folder, const RunInfo& info,
                   const std::vector<CaseSpec>& selected)
    : folder_(folder) {
  const bool earlier = fs::is_directory(folder) && is_of_a_run(folder);
  journal_ = std::make_unique<JournalWriter>(folder, JournalWriter::Earlier::kDropped);
  if (earlier) remove_earlier(folder);
  if (starts_with(fs::path(folder) / "results.json", kOurResults)) drop_results();
  journal_->add({{"head", 0, journal_head(info, selected)}});
}

RunFiles::RunFiles(const std::string& folder)
    : folder_(folder),
      journal_(std::make_unique<JournalWriter>(folder, JournalWriter::Earlier::kKept)) {}

void RunFiles::drop_results() {
  std::error_code error;
  for (const char* name : {"results.json", "report.html"}) {
    fs::remove(fs::path(folder_) / name, error);
  }
}

void RunFiles::add(size_t index, const judge::CaseResult& result, const RunInfo& info) {
  write_case(folder_, result, case_id(index, result.spec), info);
  const auto events = keeps_all(result, info) ? timeline_events : timeline_name;
  std::vector<JournalRecord> records;  // no initializer list, which would copy the texts
  records.push_back({"events", index, in_one_line(events(index, result))});
  records.push_back({"junit", index, junit_part(result, info)});
  records.push_back({"case", index, results_entry(index, result, info)});
  journal_->add(records);
}

void RunFiles::finish(const std::vector<judge::CaseResult>& results, const RunInfo& info) {
  write_results(folder_, results, info);
  if (!info.not_run.empty()) return;
  const fs::path folder(folder_);
  for (const char* name : {"results.json", "junit.xml", "timeline.json"}) {
    force_to_disk(folder / name);
  }
  force_to_disk(folder);
  std::error_code error;
  fs::remove(journal_path(folder_), error);
}

void write_results(const std::string& folder, const std::vector<judge::CaseResult>& results,
                   const RunInfo& info) {
  const fs::path path(folder);
  JournalReader journal(folder);
  const std::vector<size_t> finished = journal.finished();
  if (finished.size() != results.size()) {
    throw_bad_input(fmt::format("{} holds {} whole cases, and {} had finished",
                                journal_path(folder), finished.size(), results.size()),
                    "run the missing ones with `shardproof run --resume`");
  }
  join_parts(path / "timeline.json", kTimelineHead, journal, "events", kTimelineEnd);
  std::vector<std::string> parts;
  for (const size_t number : finished) parts.push_back(journal.text("junit", number));
  write_text(path / "junit.xml", junit_xml(parts, info));
  join_parts(path / "results.json", results_head(results, info), journal, "case", kResultsEnd);
}

void write_run_files(const std::string& folder, const std::vector<judge::CaseResult>& results,
                     const RunInfo& info) {
  std::vector<CaseSpec> selected;
  for (const judge::CaseResult& result : results) selected.push_back(result.spec);
  RunFiles files(folder, info, selected);
  for (size_t i = 0; i < results.size(); ++i) files.add(i, results[i], info);
  files.finish(results, info);
}

// Plain text with the most important parts first.

namespace {

std::string coordinates(const Mesh& mesh, int64_t rank) {
  if (rank >= mesh.world_size()) return " outside of the mesh";
  std::string text;
  for (const std::string& axis : mesh.names()) {
    text += fmt::format(" {}={}", axis, mesh.coordinate(axis, rank));
  }
  return text;
}

std::string what_is_wrong(const judge::ResultRow& row) {
  if (!row.problem.empty()) return row.problem;
  if (!row.reason.empty()) return fmt::format("{}: {}", name_of(row.outcome), row.reason);
  return fmt::format("{} of {}, worst error {:.3g} of {:.3g} allowed", row.bad_count,
                     count_of(row.count, "element"), row.worst_error, row.allowance);
}

std::string wrong_rows(const judge::RankReport& report) {
  std::string text;
  for (const auto& row : report.rows) {
    if (row.outcome == judge::Outcome::kMatch) continue;
    text += fmt::format("  {} step {} {}: {}\n", phase_name(row.phase), row.step, row.name,
                        what_is_wrong(row));
  }
  return text;
}

}  // namespace

std::string rank_log(const judge::CaseResult& result, int64_t rank, const RankEnding* ending,
                     const judge::RankReport* report) {
  const Mesh mesh = result.spec.parallel.mesh();
  std::string text = fmt::format("case    {}\nrank    {} of {}{}\nending  {}\n", result.spec.name,
                                 rank, result.spec.parallel.world_size(), coordinates(mesh, rank),
                                 ending ? ending->kind : ResultKind::kFinished);
  if (ending != nullptr && !ending->message.empty()) text += ending->message + "\n";
  if (ending != nullptr && !ending->last_call.empty()) {
    text += fmt::format("last call entered: {}\n", ending->last_call);
  }
  if (ending != nullptr && !ending->printed.empty()) {
    text += "\nthe last lines that its process printed\n" + ending->printed + "\n";
  }
  if (report == nullptr) return valid_utf8(text + "\nThis rank sent no report.\n");
  text += fmt::format("time    {:.3f} s, of it {:.3f} s comparing; peak {} tensor bytes\n",
                      report->seconds, report->compare_seconds, report->peak_tensor_bytes);
  if (!report->metrics.empty()) {
    text += "metrics " +
            report->metrics.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  for (const auto& warning : report->warnings) text += "warning  " + warning + "\n";
  const std::string wrong = wrong_rows(*report);
  if (!wrong.empty()) text += "\nwrong or not decided\n" + wrong;
  text += fmt::format("\n{} collective calls\n", report->calls.size());
  for (size_t i = 0; i < report->calls.size(); ++i) {
    text += fmt::format("{:6}  {}\n", i, report->calls[i]);
  }
  return valid_utf8(text);
}

}  // namespace shardproof::sim::report
