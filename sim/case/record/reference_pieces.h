// The files in which the ranks of a reference layout put their pieces: one for each tensor, as
// large as the full tensor, sparse until they are written. No process holds a full tensor: a rank
// touches only the pages of its own elements.
//
//   <folder>/<phase> <step> <name>   | numel float64 or int64 values | numel uint8: who gave each |
//   <folder>/<rank>.rank             what this rank put there, see RankPieces
//
// All ranks must be on one host, because they write to the same pages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "sim/case/record/golden_record.h"
#include "sim/case/record/magnitude.h"

namespace shardproof::sim {

inline constexpr const char* kPiecesFolder = "pieces";  // key of an index's metadata

class PiecesFile {
 public:
  // Throw Error(kBadInput): the file cannot be made, or is not there on this host.
  static PiecesFile to_write(const std::string& folder, const GoldenFacts& facts,
                             const std::vector<int64_t>& shape);
  static PiecesFile to_read(const std::string& folder, const GoldenFacts& facts,
                            const std::vector<int64_t>& shape);

  TensorView value() const { return value_; }
  TensorView integers() const {  // of a tensor of them
    return {value_.owner(), Dtype::kInt64, value_.sizes()};
  }
  TensorView given() const { return given_; }
  double* values() const { return values_; }   // of a file to write; integers have the same size
  uint8_t* givers() const { return givers_; }  // of a file to write
  // Adds to what other ranks add at the same time: calls `add` while no other rank does.
  template <class Add>
  void alone(const Add& add) const {
    lock(true);
    add();
    lock(false);
  }

 private:
  static PiecesFile open(const std::string& path, const std::vector<int64_t>& shape, bool writes);
  void lock(bool locked) const;

  std::shared_ptr<const OwnedFd> descriptor_;
  TensorView value_, given_;
  double* values_ = nullptr;
  uint8_t* givers_ = nullptr;
};

// Gives the pages of a mapped tensor back; they are read again when they are needed. Does nothing
// to a tensor that one device has made.
void release_pages(const GoldenTensor& tensor);

// The largest error of each tensor of the run in a lower precision that nothing moves, by
// record_key(): the further ones read it.
using RunErrors = std::map<std::string, double>;
void write_errors(const std::string& folder, const RunErrors& errors);
RunErrors read_errors(const std::string& folder);

// One observation of a rank of the reference.
struct GivenPiece {
  GoldenFacts facts;    // without order, scales and scatters; tensors_of() sets `scale`
  Magnitude magnitude;  // of the elements that this rank gives
  std::vector<int64_t> shape;
  bool finite = true;
  bool integers = false;  // decisions, as the experts of a token
  int64_t microbatch = 0;
  uint64_t digest = 0, tokens = 0;      // equal for copies
  bool compares_replicas = true;        // false: only padding
  std::vector<int64_t> replicas = {};   // ranks that hold a copy, with this one
  std::vector<int64_t> addend_of = {};  // ranks whose addends make the value; empty: it is whole
};

// What one rank of the reference gave, in the order observed.
struct RankPieces {
  int64_t rank = 0;
  std::string host;
  std::vector<GivenPiece> pieces = {};

  void write(const std::string& folder) const;
  // Throws Error(kBadInput) when the file is not there or damaged.
  static RankPieces read(const std::string& folder, int64_t rank);
};

// The tensors of which the ranks gave pieces, in the order observed. Throws Error, a fault of the
// reference: pieces of several hosts, copies that differ, an addend that is missing, tensors of
// unequal shape.
std::vector<GivenPiece> tensors_of(const std::vector<RankPieces>& ranks);
// Widens the scatter of `tensors`, whose pieces are in `folder`, by those of another run, which are
// in `other`. Holds one tensor's pages at a time.
void add_run(std::vector<GivenPiece>& tensors, const std::string& folder,
             const std::vector<GivenPiece>& others, const std::string& other);
// The index of the tensors of a reference, as GoldenRecord::from_fd reads it. Throws Error, a fault
// of the reference: a parameter or loss that is not finite.
std::string index_of_pieces(const std::string& folder, std::vector<GivenPiece> tensors);

}  // namespace shardproof::sim
