// Parameters of tensor-parallel layers: first values, attributes, and checkpoints that are loaded
// at another tp size.
#include "parallel/tp/layer_parameter.h"

#include <catch2/catch.hpp>
#include <functional>

#include "parallel/tp/column_linear.h"
#include "parallel/tp/row_linear.h"
#include "parallel/tp/vocab_embedding.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests {
namespace {

TEST_CASE("a master's cut gives the same full weight for every tp size, stride or not",
          "[tp][TP-1]") {
  for (const int64_t stride : {1, 2}) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const bool wide = dtype == at::kDouble;
      const at::Tensor master =
          at::zeros({24, 5}, at::TensorOptions().dtype(wide ? at::kDouble : at::kFloat));
      normal_init(7, 0.02)(master);
      for (const int64_t tp : {1, 2, 3, 4}) {
        const auto results = on_every_rank(Mesh({{"tp", tp}}), [&](MeshComm& comm, int64_t) {
          ColumnLinear layer({.input_size = 5,
                              .output_size = 24,
                              .stride = stride,
                              .dtype = dtype,
                              .init = normal_init(7, 0.02),
                              .keep_master = true},
                             comm.along("tp"));
          RowLinear row({.input_size = 24,
                         .output_size = 5,
                         .stride = stride,
                         .dtype = dtype,
                         .init = [&](const at::Tensor& w) { at::Tensor(w).copy_(master.t()); }},
                        comm.along("tp"));
          return NamedResults{{"weight", layer.weight()->tensor.detach()},
                              {"row", row.weight().tensor.detach()},
                              {"bias", layer.bias()->tensor.detach()},
                              {"master", layer.weight()->master}};
        });
        const std::vector<int64_t> blocks(static_cast<size_t>(stride), 24 / stride);
        for (size_t rank = 0; rank < results.size(); ++rank) {
          const at::Tensor full = master.to(dtype);
          CHECK(results[rank].at("master").equal(full));
          CHECK(results[rank].at("weight").equal(part_at(full, 0, rank, results.size(), blocks)));
          CHECK(results[rank].at("row").equal(part_at(full.t(), 1, rank, results.size(), blocks)));
          CHECK(results[rank].at("bias").eq(0).all().item<bool>());
        }
      }
    }
  }
}

TEST_CASE("a draw of each rank's own stream differs between ranks", "[tp][TP-1]") {
  const auto results = on_every_rank(Mesh({{"tp", 3}}), [](MeshComm& comm, int64_t rank) {
    ColumnLinear layer({.input_size = 5,
                        .output_size = 24,
                        .dtype = at::kDouble,
                        .init = normal_init(2718 + rank, 1),
                        .init_from = InitFrom::kOwnStream},
                       comm.along("tp"));
    return NamedResults{{"weight", layer.weight()->tensor.detach()}};
  });
  for (int64_t rank = 0; rank < 3; ++rank) {
    const at::Tensor own = at::zeros({8, 5}, at::kDouble);
    normal_init(2718 + rank, 1)(own);
    CHECK(results[static_cast<size_t>(rank)].at("weight").equal(own));
  }
}

TEST_CASE("attributes say how a parameter is cut, and who counts it", "[tp][TP-1]") {
  run_emulated_ranks(Mesh({{"tp", 2}}), [](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    ColumnLinear column({.input_size = 4, .output_size = 8, .stride = 2}, tp);
    RowLinear row({.input_size = 8, .output_size = 4, .sequence_parallel = true}, tp);
    VocabEmbedding embedding({.num_embeddings = 6, .embedding_dim = 4}, tp);
    const TpAttributes strided{.tensor_parallel = true, .partition_dim = 0, .partition_stride = 2};
    const TpAttributes rows{.tensor_parallel = true, .partition_dim = 1, .partition_stride = 1};
    LayerParameter copied, untouched;
    copy_tp_attributes(copied, *column.weight());
    copy_tp_attributes(copied, untouched);  // nothing to copy
    const bool right =
        tp_attributes(*column.weight()) == strided && tp_attributes(*column.bias()) == strided &&
        tp_attributes(row.weight()) == rows && tp_attributes(*row.bias()) == TpAttributes{} &&
        row.bias()->sequence_parallel && row.bias()->allreduce && column.weight()->allreduce &&
        tp_attributes(copied) == strided && tp_attributes(untouched) == TpAttributes{} &&
        tp_attributes(embedding.weight()).partition_dim == 0 &&
        is_not_tp_duplicate(*column.weight(), rank) && is_not_tp_duplicate(row.weight(), rank) &&
        is_not_tp_duplicate(*row.bias(), rank) == (rank == 0);
    if (!right) throw std::logic_error("an attribute is wrong");
  });
}

struct Saved {
  ShardedState state = {};  // of all ranks
  at::Tensor column, column_bias, row, row_bias, embedding;
};

std::vector<PrependedAxis> layer_three() { return {{.index = 3, .size = 8}}; }

// A column layer with stride 2, a row layer and an embedding, with these full values.
Saved save_at(int64_t tp_size, const std::vector<PrependedAxis>& prepended) {
  Saved saved{.column = random_tensor({24, 5}, 1),
              .column_bias = random_tensor({24}, 2),
              .row = random_tensor({5, 24}, 3),
              .row_bias = random_tensor({5}, 4),
              .embedding = random_tensor({36, 5}, 5)};
  std::vector<ShardedState> states(static_cast<size_t>(2 * tp_size));
  run_emulated_ranks(Mesh({{"dp", 2}, {"tp", tp_size}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    ColumnLinear column({.input_size = 5,
                         .output_size = 24,
                         .stride = 2,
                         .dtype = at::kDouble,
                         .init = filled_with(saved.column)},
                        tp);
    RowLinear row(
        {.input_size = 24, .output_size = 5, .dtype = at::kDouble, .init = filled_with(saved.row)},
        tp);
    VocabEmbedding embedding({.num_embeddings = 36,
                              .embedding_dim = 5,
                              .dtype = at::kDouble,
                              .init = filled_with(saved.embedding)},
                             tp);
    const at::NoGradGuard no_grad;
    column.bias()->tensor.copy_(own_blocks(saved.column_bias, 0, {12, 12}, tp.rank(), tp.size()));
    row.bias()->tensor.copy_(saved.row_bias);
    ShardedState& state = states[static_cast<size_t>(rank)];
    const auto key = [&](const char* prefix) {
      return StateKey{.prefix = prefix,
                      .prepended = prepended,
                      .data_parallel_rank = comm.mesh().coordinate("dp", rank)};
    };
    for (const auto& part : {column.sharded_state(key("up.")), row.sharded_state(key("down.")),
                             embedding.sharded_state(key("embed."))}) {
      state.insert(state.end(), part.begin(), part.end());
    }
  });
  for (ShardedState& state : states) {
    for (ShardedTensor& tensor : state) tensor.data = tensor.data.clone();
    saved.state.insert(saved.state.end(), state.begin(), state.end());
  }
  return saved;
}

TEST_CASE("saved at one tp size, loaded at another: stride, replicas and stacked layers too",
          "[tp][TP-1][TP-2][TP-3]") {
  for (const bool stacked : {false, true}) {
    const auto prepended = stacked ? layer_three() : std::vector<PrependedAxis>{};
    for (const int64_t from : {1, 2, 4}) {
      const Saved saved = save_at(from, prepended);
      for (const int64_t to : {1, 2, 3, 4}) {
        const auto results = on_every_rank(Mesh({{"tp", to}}), [&](MeshComm& comm, int64_t) {
          Communicator& tp = comm.along("tp");
          ColumnLinear column(
              {.input_size = 5, .output_size = 24, .stride = 2, .dtype = at::kDouble}, tp);
          RowLinear row({.input_size = 24, .output_size = 5, .dtype = at::kDouble}, tp);
          VocabEmbedding embedding({.num_embeddings = 36, .embedding_dim = 5, .dtype = at::kDouble},
                                   tp);
          column.load(saved.state, {.prefix = "up.", .prepended = prepended});
          row.load(saved.state, {.prefix = "down.", .prepended = prepended});
          embedding.load(saved.state, {.prefix = "embed.", .prepended = prepended});
          return NamedResults{{"column", column.weight()->tensor.detach()},
                              {"column bias", column.bias()->tensor.detach()},
                              {"row", row.weight().tensor.detach()},
                              {"row bias", row.bias()->tensor.detach()},
                              {"embedding", embedding.weight().tensor.detach()}};
        });
        for (size_t rank = 0; rank < results.size(); ++rank) {
          INFO("from " << from << " to " << to << " rank " << rank);
          const auto& own = results[rank];
          const size_t size = results.size();
          CHECK(own.at("column").equal(part_at(saved.column, 0, rank, size, {12, 12})));
          CHECK(own.at("column bias").equal(part_at(saved.column_bias, 0, rank, size, {12, 12})));
          CHECK(own.at("row").equal(part_at(saved.row, 1, rank, size)));
          CHECK(own.at("row bias").equal(saved.row_bias));
          CHECK(own.at("embedding").equal(part_at(saved.embedding, 0, rank, size)));
        }
      }
    }
  }
}

TEST_CASE("a sharded state says shape, offset and replica", "[tp][TP-1][TP-2]") {
  const Saved saved = save_at(2, layer_three());
  std::map<std::string, int> main_elements;
  for (const ShardedTensor& tensor : saved.state) {
    CHECK(tensor.global_shape.front() == 8);
    CHECK(tensor.global_offset.front() == 3);
    if (tensor.main_replica()) main_elements[tensor.key] += static_cast<int>(tensor.data.numel());
    CHECK(tensor.allow_shape_mismatch == (tensor.key == "embed.weight"));
  }
  CHECK(main_elements == std::map<std::string, int>{{"up.weight", 120},
                                                    {"up.bias", 24},
                                                    {"down.weight", 120},
                                                    {"down.bias", 5},
                                                    {"embed.weight", 180}});
}

// A case of `saved` with the piece of "up.weight" at row 18 made another one, loaded on one rank:
// what was said, and whether the weight is as it was.
std::pair<std::string, bool> load_with_last_piece(
    const Saved& saved, const std::function<void(ShardedState&, ShardedTensor)>& add) {
  ShardedState state, last;
  for (const ShardedTensor& tensor : saved.state) {
    const bool at_18 = tensor.key == "up.weight" && tensor.global_offset[0] == 18;
    if (!at_18 || !tensor.main_replica()) state.push_back(tensor);
    if (at_18 && tensor.main_replica()) last.push_back(tensor);
  }
  add(state, last.at(0));
  std::pair<std::string, bool> result;
  run_emulated_ranks(Mesh({{"tp", 1}}), [&](MeshComm& comm, int64_t) {
    ColumnLinear layer({.input_size = 5,
                        .output_size = 24,
                        .bias = false,
                        .stride = 2,
                        .dtype = at::kDouble,
                        .init = normal_init(9, 1)},
                       comm.along("tp"));
    const at::Tensor before = layer.weight()->tensor.detach().clone();
    result.first = said_by([&] { layer.load(state, {.prefix = "up."}); });
    result.second = layer.weight()->tensor.equal(before);
  });
  return result;
}

TEST_CASE("a piece given twice does not stand for one that is missing; what is refused loads none",
          "[tp][TP-1]") {
  const Saved saved = save_at(2, {});
  const auto whole = load_with_last_piece(
      saved, [](ShardedState& state, const ShardedTensor& last) { state.push_back(last); });
  CHECK(whole.first == "");
  CHECK_FALSE(whole.second);
  const auto missing = load_with_last_piece(saved, [](ShardedState&, const ShardedTensor&) {});
  CHECK(contains(missing.first, "of the 60 elements at offset [12,0] the checkpoint holds 30"));
  CHECK(missing.second);
  for (const int64_t row : {12, 15}) {  // the same rows as the piece before it, or three of them
    const auto twice = load_with_last_piece(saved, [&](ShardedState& state, ShardedTensor last) {
      last.global_offset[0] = row;
      state.push_back(last);
    });
    INFO(row << ": " << twice.first);
    CHECK(contains(twice.first, row == 12
                                    ? "'up.weight': 30 elements are in the checkpoint twice"
                                    : "'up.weight': 15 elements are in the checkpoint twice"));
    CHECK(twice.second);
  }
}

TEST_CASE("an embedding takes a vocabulary padded otherwise; a linear layer takes no other shape",
          "[tp][TP-3]") {
  const Saved saved = save_at(2, {});
  for (const int64_t rows : {32, 40}) {
    const auto results = on_every_rank(Mesh({{"tp", 4}}), [&](MeshComm& comm, int64_t) {
      VocabEmbedding embedding({.num_embeddings = rows,
                                .embedding_dim = 5,
                                .dtype = at::kDouble,
                                .init = normal_init(1, 1)},
                               comm.along("tp"));
      embedding.load(saved.state, {.prefix = "embed."});
      return NamedResults{{"weight", embedding.weight().tensor.detach()}};
    });
    const at::Tensor full = at::zeros({rows, 5}, at::kDouble);
    const int64_t both = std::min<int64_t>(rows, 36);
    full.narrow(0, 0, both).copy_(saved.embedding.narrow(0, 0, both));
    for (size_t rank = 0; rank < 4; ++rank) {
      CHECK(results[rank].at("weight").equal(part_at(full, 0, rank, 4)));
    }
  }
  run_emulated_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t) {
    Communicator& tp = comm.along("tp");
    ColumnLinear other({.input_size = 5, .output_size = 20, .bias = false}, tp);
    ColumnLinear same({.input_size = 5, .output_size = 24, .bias = false, .stride = 2}, tp);
    ShardedState half;
    for (const ShardedTensor& tensor : saved.state) {
      if (tensor.global_offset[0] < 12) half.push_back(tensor);
    }
    const std::string shape = said_by([&] { other.load(saved.state, {.prefix = "up."}); });
    const std::string missing = said_by([&] { same.load(half, {.prefix = "up."}); });
    const std::string unknown = said_by([&] { same.load(saved.state, {.prefix = "upp."}); });
    // One block may be longer or shorter there; where several begin would be a guess.
    ColumnLinear longer({.input_size = 5, .output_size = 28, .bias = false, .stride = 2}, tp);
    const StateKey loosely{.prefix = "up.", .allow_shape_mismatch = true};
    const std::string blocks = said_by([&] { longer.load(saved.state, loosely); });
    if (!contains(blocks,
                  "'up.weight' has 2 blocks, and shape [24,5] in the checkpoint where it has "
                  "[28,5] here") ||
        longer.weight()->tensor.ne(0).any().item<bool>() ||
        !said_by([&] { same.load(saved.state, loosely); }).empty()) {
      throw std::logic_error(blocks);
    }
    const std::string one_run = said_by([&] { same.sharded_state({.form = RunForm::kPerRank}); });
    if (!contains(shape, "'up.weight' has shape [24,5] in the checkpoint and [20,5] here") ||
        !contains(missing, "the checkpoint holds 0") ||
        !contains(unknown, "the checkpoint has no 'upp.weight'") ||
        !contains(unknown, "did you mean 'up.weight'?") ||
        !contains(one_run, "refused: 'weight' has stride 2: over 2 ranks") ||
        !contains(one_run, "could not be loaded at another tp size")) {
      throw std::logic_error(shape + missing + unknown + one_run);
    }
  });
}

}  // namespace
}  // namespace shardproof::tests
