#include "sim/case/record/reference_pieces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/mapped_pages.h"
#include "sim/case/record/golden_blob.h"
#include "sim/case/record/magnitude.h"

namespace shardproof::sim {
namespace {

constexpr size_t kBlobStart = 8;  // bytes before the index of a blob

[[noreturn]] void reference_fault(const std::string& what) {
  throw_failed(what, "compare the reference's layout with one device, or name another one",
               "threw");
}

[[noreturn]] void cannot(const char* verb, const std::string& path) {
  throw_bad_input(fmt::format("cannot {} '{}': {}", verb, path, std::strerror(errno)),
                  "all ranks must be on one host, with room in TMPDIR for the reference");
}

std::string piece_path(const std::string& folder, const GoldenFacts& facts) {
  return folder + "/" + record_key(facts.phase, facts.step, facts.name);
}

std::string rank_path(const std::string& folder, int64_t rank) {
  return fmt::format("{}/{}.rank", folder, rank);
}

void write_sealed(const std::string& path, const IndexWriter& content) {
  std::ofstream file(path, std::ios::binary);
  file << std::string(kBlobStart, '\0') << sealed_index(content.bytes());
  file.close();
  if (!file) cannot("write", path);
}

std::string read_sealed(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) cannot("read", path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string step_name(const GoldenFacts& facts) {
  return fmt::format("{} of step {} ({})", facts.name, facts.step, phase_name(facts.phase));
}

using PieceKey = std::tuple<Phase, int64_t, std::string>;
PieceKey key_of(const GivenPiece& piece) {
  return {piece.facts.phase, piece.facts.step, piece.facts.name};
}

// Equal for pieces that must be equal.
using Copies = std::tuple<PieceKey, int64_t, uint64_t, std::vector<int64_t>, bool>;
Copies copies_of(const GivenPiece& piece) {
  return {key_of(piece), piece.microbatch, piece.tokens, piece.replicas, !piece.addend_of.empty()};
}

// Throws unless the pieces that must be equal are.
void check_copies_agree(const std::vector<RankPieces>& ranks) {
  std::map<Copies, std::pair<uint64_t, int64_t>> first;  // digest and rank
  for (const RankPieces& rank : ranks) {
    for (const GivenPiece& piece : rank.pieces) {
      if (!piece.compares_replicas || piece.replicas.size() < 2) continue;
      const auto [known, fresh] = first.try_emplace(copies_of(piece), piece.digest, rank.rank);
      if (fresh || known->second.first == piece.digest) continue;
      reference_fault(fmt::format("its ranks {} and {} hold copies of {} that differ",
                                  known->second.second, rank.rank, step_name(piece.facts)));
    }
  }
}

// Throws unless every rank that owes an addend has given one.
void check_addends(const std::vector<RankPieces>& ranks) {
  std::map<PieceKey, std::set<int64_t>> givers;
  for (const RankPieces& rank : ranks) {
    for (const GivenPiece& piece : rank.pieces) {
      if (!piece.addend_of.empty()) givers[key_of(piece)].insert(rank.rank);
    }
  }
  for (const RankPieces& rank : ranks) {
    for (const GivenPiece& piece : rank.pieces) {
      for (const int64_t peer : piece.addend_of) {
        if (givers[key_of(piece)].contains(peer)) continue;
        reference_fault(
            fmt::format("its rank {} gave no addend of {}", peer, step_name(piece.facts)));
      }
    }
  }
}

void check_one_host(const std::vector<RankPieces>& ranks) {
  for (const RankPieces& rank : ranks) {
    if (rank.host == ranks.front().host) continue;
    throw_bad_input(fmt::format("the ranks of the reference are on more than one host ({}, {})",
                                ranks.front().host, rank.host),
                    "a reference needs all ranks on one host");
  }
}

// Each tensor once, in the order of the first rank that observed it.
std::vector<GivenPiece> merged(const std::vector<RankPieces>& ranks) {
  std::vector<GivenPiece> tensors;
  std::map<PieceKey, size_t> places;
  std::set<Copies> counted;
  for (const RankPieces& rank : ranks) {
    for (const GivenPiece& piece : rank.pieces) {
      const bool is_copy = piece.addend_of.empty() && !counted.insert(copies_of(piece)).second;
      const auto [place, fresh] = places.try_emplace(key_of(piece), tensors.size());
      if (fresh) {
        tensors.push_back(piece);
        continue;
      }
      GivenPiece& whole = tensors[place->second];
      if (whole.shape != piece.shape) {
        reference_fault(fmt::format("{} has the shapes [{}] and [{}]", step_name(piece.facts),
                                    fmt::join(whole.shape, ", "), fmt::join(piece.shape, ", ")));
      }
      if (!is_copy) whole.magnitude.add(piece.magnitude);
      whole.finite = whole.finite && piece.finite;
    }
  }
  for (GivenPiece& whole : tensors) whole.facts.scale = whole.magnitude.value();
  return tensors;
}

}  // namespace

PiecesFile PiecesFile::open(const std::string& path, const std::vector<int64_t>& shape,
                            bool writes) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  const size_t bytes = count * (sizeof(double) + 1);
  PiecesFile file;
  const int flags = writes ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC;
  OwnedFd opened(::open(path.c_str(), flags, 0600));
  if (!opened.valid()) cannot(writes ? "make" : "open", path);
  const int descriptor = opened.get();
  file.descriptor_ = std::make_shared<const OwnedFd>(std::move(opened));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) cannot("read", path);
  if (writes && status.st_size == 0) {  // a file that another rank maps keeps its size
    if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) cannot("write", path);
    if (::fstat(descriptor, &status) != 0) cannot("read", path);
  }
  if (static_cast<size_t>(status.st_size) != bytes) {
    throw_bad_input(fmt::format("'{}' has {} bytes, not {}", path, status.st_size, bytes),
                    "run the reference again");
  }
  if (bytes == 0) {
    file.value_ = TensorView::of(std::vector<double>(), shape);
    file.given_ = {std::make_shared<const uint8_t>(), Dtype::kUint8, shape};
    return file;
  }
  const auto pages = std::make_shared<const MappedPages>(descriptor, bytes, writes);
  if (pages->data() == nullptr) cannot("map", path);
  auto* values = static_cast<double*>(pages->data());
  auto* givers = reinterpret_cast<uint8_t*>(values + count);
  file.value_ = {std::shared_ptr<const void>(pages, values), Dtype::kFloat64, shape};
  file.given_ = {std::shared_ptr<const void>(pages, givers), Dtype::kUint8, shape};
  if (writes) {
    file.values_ = values;
    file.givers_ = givers;
  }
  return file;
}

PiecesFile PiecesFile::to_write(const std::string& folder, const GoldenFacts& facts,
                                const std::vector<int64_t>& shape) {
  return open(piece_path(folder, facts), shape, true);
}

PiecesFile PiecesFile::to_read(const std::string& folder, const GoldenFacts& facts,
                               const std::vector<int64_t>& shape) {
  PiecesFile file = open(piece_path(folder, facts), shape, false);
  file.descriptor_.reset();  // thousands of tensors stay mapped
  return file;
}

void PiecesFile::lock(bool locked) const {
  while (::flock(descriptor_->get(), locked ? LOCK_EX : LOCK_UN) != 0) {
    SHARDPROOF_ASSERT(errno == EINTR, "a file of pieces cannot be locked");
  }
}

void release_pages(const GoldenTensor& tensor) {
  if (!tensor.given.defined() || tensor.value.numel() == 0) return;
  const size_t bytes = tensor.value.nbytes() + tensor.given.nbytes();
  ::madvise(const_cast<void*>(tensor.value.bytes()), bytes, MADV_DONTNEED);
}

void write_errors(const std::string& folder, const RunErrors& errors) {
  IndexWriter out;
  out.put(static_cast<uint32_t>(errors.size()));
  for (const auto& [key, error] : errors) {
    out.put_text(key);
    out.put(error);
  }
  write_sealed(folder + "/errors", out);
}

RunErrors read_errors(const std::string& folder) {
  const std::string blob = read_sealed(folder + "/errors");
  IndexReader in(golden_index(blob));
  RunErrors errors;
  for (auto count = in.take<uint32_t>(); count > 0; --count) {
    const std::string key = in.take_text();
    errors[key] = in.take<double>();
  }
  return errors;
}

void RankPieces::write(const std::string& folder) const {
  IndexWriter out;
  out.put(rank);
  out.put_text(host);
  out.put(static_cast<uint32_t>(pieces.size()));
  for (const GivenPiece& piece : pieces) {
    out.put(static_cast<int8_t>(piece.facts.phase));
    out.put(piece.facts.step);
    out.put(piece.facts.kind);
    out.put_text(piece.facts.name);
    out.put(static_cast<int8_t>(piece.facts.token_dims));
    piece.magnitude.put(out);
    out.put(static_cast<int8_t>(piece.facts.kept_in_float32));
    out.put_list(piece.facts.rows);
    out.put(piece.facts.all_rows);
    out.put_list(piece.shape);
    out.put(static_cast<int8_t>(piece.finite));
    out.put(static_cast<int8_t>(piece.integers));
    out.put(piece.microbatch);
    out.put(piece.digest);
    out.put(piece.tokens);
    out.put(static_cast<int8_t>(piece.compares_replicas));
    out.put_list(piece.replicas);
    out.put_list(piece.addend_of);
  }
  write_sealed(rank_path(folder, rank), out);
}

RankPieces RankPieces::read(const std::string& folder, int64_t rank) {
  const std::string blob = read_sealed(rank_path(folder, rank));
  IndexReader in(golden_index(blob));
  RankPieces out{.rank = in.take<int64_t>(), .host = in.take_text()};
  out.pieces.resize(in.take<uint32_t>());
  for (GivenPiece& piece : out.pieces) {
    piece.facts.phase = static_cast<Phase>(in.take<int8_t>());
    piece.facts.step = in.take<int64_t>();
    piece.facts.kind = in.take<ObservationKind>();
    piece.facts.name = in.take_text();
    piece.facts.token_dims = in.take<int8_t>() != 0;
    piece.magnitude = Magnitude::take(in);
    piece.facts.kept_in_float32 = in.take<int8_t>() != 0;
    piece.facts.rows = in.take_list();
    piece.facts.all_rows = in.take<int64_t>();
    piece.shape = in.take_list();
    piece.finite = in.take<int8_t>() != 0;
    piece.integers = in.take<int8_t>() != 0;
    piece.microbatch = in.take<int64_t>();
    piece.digest = in.take<uint64_t>();
    piece.tokens = in.take<uint64_t>();
    piece.compares_replicas = in.take<int8_t>() != 0;
    piece.replicas = in.take_list();
    piece.addend_of = in.take_list();
  }
  return out;
}

std::vector<GivenPiece> tensors_of(const std::vector<RankPieces>& ranks) {
  check_one_host(ranks);
  check_copies_agree(ranks);
  check_addends(ranks);
  return merged(ranks);
}

void add_run(std::vector<GivenPiece>& tensors, const std::string& folder,
             const std::vector<GivenPiece>& others, const std::string& other) {
  std::map<PieceKey, const GivenPiece*> by_key;
  for (const GivenPiece& piece : others) by_key[key_of(piece)] = &piece;
  for (GivenPiece& tensor : tensors) {
    if (tensor.integers) continue;  // they have no scatter
    const auto found = by_key.find(key_of(tensor));
    const bool alike = found != by_key.end() && found->second->shape == tensor.shape;
    const TensorView value = PiecesFile::to_read(folder, tensor.facts, tensor.shape).value();
    if (!alike) {
      add_member(value, nullptr, tensor.facts);
      continue;
    }
    const TensorView moved = PiecesFile::to_read(other, tensor.facts, tensor.shape).value();
    add_member(value, &moved, tensor.facts);
    tensor.facts.kept_in_float32 = found->second->facts.kept_in_float32;
  }
}

std::string index_of_pieces(const std::string& folder, std::vector<GivenPiece> tensors) {
  GoldenScales scales;
  for (const GivenPiece& tensor : tensors) scales.add(tensor.facts, tensor.finite);
  IndexWriter index;
  index.put(static_cast<uint32_t>(tensors.size()));
  for (GivenPiece& tensor : tensors) {
    tensor.facts.phase_scale = scales.of_phase(tensor.facts);
    const Dtype dtype = tensor.integers ? Dtype::kInt64 : Dtype::kFloat64;
    put_tensor(index, tensor.facts, dtype, 0, tensor.shape);
  }
  index.put(uint32_t{1});
  index.put_text(kPiecesFolder);
  index.put_text(folder);
  return std::string(kBlobStart, '\0') + sealed_index(index.bytes());
}

}  // namespace shardproof::sim
