// The inputs of a Ulysses group and its outputs.
#include <catch2/catch.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "parallel/ulysses/samples.h"
#include "parallel/ulysses/slice_inputs.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

using RunRanks = std::function<void(const Mesh&, const RankFunction&)>;

// Rank r has r + 2 samples of different sizes, and rank 1 has none.
std::vector<Sample> brought_by(int64_t rank) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < (rank == 1 ? 0 : rank + 2); ++i) {
    Sample sample;
    sample["ids"] = at::arange(100 * rank + i, 100 * rank + i + 3 * i, at::kLong);
    sample["scores"] = random_tensor({i, 2}, 10 * rank + i).to(at::kBFloat16);
    sample["flag"] = at::full({}, i % 2 == 1, at::kBool);
    sample["prompt"] = std::string("rank ") + std::to_string(rank) + "\0\xff:" + std::to_string(i);
    if (i == 1) sample["only here"] = std::string();
    samples.push_back(std::move(sample));
  }
  return samples;
}

bool same(const Sample& a, const Sample& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, value] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.index() != value.index()) return false;
    if (const auto* text = std::get_if<std::string>(&value)) {
      if (*text != std::get<std::string>(found->second)) return false;
      continue;
    }
    const at::Tensor& x = std::get<at::Tensor>(value);
    const at::Tensor& y = std::get<at::Tensor>(found->second);
    if (x.scalar_type() != y.scalar_type() || !at::equal(x, y)) return false;
  }
  return true;
}

// A backend that reports the device of its tensors.
class DeviceTeller final : public c10d::Backend {
 public:
  DeviceTeller() : c10d::Backend(0, 2) {}
  const std::string getBackendName() const override { return "teller"; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    throw std::runtime_error("tensors on " + input.device().str());
  }
};

}  // namespace

TEST_CASE("samples of any size reach every rank in rank order", "[US-1]") {
  for (const int64_t size : {1, 2, 3, 4}) {
    std::vector<Sample> golden;
    for (int64_t rank = 0; rank < size; ++rank) {
      for (Sample& sample : brought_by(rank)) golden.push_back(std::move(sample));
    }
    for (const RunRanks& run : {RunRanks(run_emulated_ranks), RunRanks(run_gloo_ranks)}) {
      std::vector<int> right(static_cast<size_t>(size), 0);
      run(Mesh({{"ulysses", size}}), [&](MeshComm& comm, int64_t rank) {
        const auto all =
            gather_samples(brought_by(rank), comm.along("ulysses"), "samples", at::kCPU);
        right[static_cast<size_t>(rank)] =
            all.size() == golden.size() && std::equal(all.begin(), all.end(), golden.begin(), same);
      });
      CHECK(right == std::vector<int>(static_cast<size_t>(size), 1));
    }
  }
}

TEST_CASE("samples travel from the device that the backend takes tensors on", "[US-1]") {
  const std::vector<Sample> own = {{{"prompt", std::string("text")}}};
  Communicator ulysses("ulysses", {0, 1}, 0, c10::make_intrusive<DeviceTeller>(), nullptr);
  for (const at::DeviceType device : {at::kCPU, at::kMeta}) {
    CHECK_THROWS_WITH(gather_samples(own, ulysses, "samples", device),
                      Catch::Contains("tensors on " + at::Device(device).str()));
  }
}

TEST_CASE("each rank takes its contiguous block home", "[US-1]") {
  std::vector<std::string> held(3);
  run_emulated_ranks(Mesh({{"dp", 1}, {"ulysses", 3}}), [&](MeshComm& comm, int64_t rank) {
    std::vector<Sample> all(6);
    for (size_t i = 0; i < 6; ++i) all[i]["name"] = std::string(1, static_cast<char>('a' + i));
    for (const Sample& sample : own_samples(all, comm.along("ulysses"))) {
      held[static_cast<size_t>(rank)] += std::get<std::string>(sample.at("name"));
    }
  });
  CHECK(held == std::vector<std::string>{"ab", "cd", "ef"});
}

TEST_CASE("samples that do not divide by the group are refused", "[US-1]") {
  const auto runs = try_emulated_ranks(Mesh({{"ulysses", 3}}), [](MeshComm& comm, int64_t) {
    own_samples(std::vector<Sample>(7), comm.along("ulysses"));
  });
  CHECK_THAT(runs.error_text(2), Catch::Contains("7 samples do not divide by ulysses=3"));
}

TEST_CASE("ids are padded and sliced, positions padded", "[US-2]") {
  for (const int64_t size : {1, 2, 3, 4}) {
    for (const int64_t length : {1, 6, 7, 12}) {
      for (const int64_t batch : {1, 2}) {
        const int64_t padded = (length + size - 1) / size * size;
        const at::Tensor ids = at::arange(1, batch * length + 1, at::kLong).view({batch, length});
        const at::Tensor positions = ids * 7;
        std::vector<SlicedInputs> sliced(static_cast<size_t>(size));
        run_emulated_ranks(Mesh({{"ulysses", size}}), [&](MeshComm& comm, int64_t rank) {
          sliced[static_cast<size_t>(rank)] =
              slice_and_pad_inputs(ids, positions, comm.along("ulysses"));
        });
        std::vector<at::Tensor> slices;
        for (const SlicedInputs& one : sliced) {
          CHECK(one.padding == padded - length);
          CHECK(one.input_ids.size(1) == padded / size);
          CHECK(at::equal(one.position_ids->narrow(1, 0, length), positions));
          for (int64_t i = length; i < padded; ++i) {
            CHECK((*one.position_ids)[batch - 1][i].item<int64_t>() == i - length);
          }
          slices.push_back(one.input_ids);
        }
        const at::Tensor whole = at::cat(slices, 1);
        CHECK(at::equal(whole.narrow(1, 0, length), ids));
        CHECK(whole.narrow(1, length, padded - length).ne(0).sum().item<int64_t>() == 0);
      }
    }
  }
}

TEST_CASE("positions are optional, and refused where they do not fit the ids", "[US-2]") {
  run_emulated_ranks(Mesh({{"ulysses", 2}}), [](MeshComm& comm, int64_t) {
    const at::Tensor ids = at::zeros({1, 5}, at::kLong);
    if (slice_and_pad_inputs(ids, std::nullopt, comm.along("ulysses")).position_ids) {
      throw std::runtime_error("positions from nowhere");
    }
  });
  const auto runs = try_emulated_ranks(Mesh({{"ulysses", 2}}), [](MeshComm& comm, int64_t) {
    slice_and_pad_inputs(at::zeros({1, 5}, at::kLong), at::zeros({1, 6}, at::kLong),
                         comm.along("ulysses"));
  });
  CHECK_THAT(runs.error_text(0), Catch::Contains("position_ids is [1, 6], input_ids [1, 5]"));
}

TEST_CASE("results are gathered and unpadded, and the gradient of padding is 0", "[US-2]") {
  for (const RunRanks& run : {RunRanks(run_emulated_ranks), RunRanks(run_gloo_ranks)}) {
    std::vector<std::string> wrong(3);
    run(Mesh({{"ulysses", 3}}), [&](MeshComm& comm, int64_t rank) {
      const at::Tensor full = random_tensor({2, 9, 4}, 1), grad = random_tensor({2, 7, 4}, 2);
      const at::Tensor local = full.narrow(1, rank * 3, 3).clone().requires_grad_();
      const at::Tensor out = gather_and_unpad(local, comm.along("ulysses"), 1, 1, 2, "out");
      out.backward(grad);
      const at::Tensor padded_grad = at::cat({grad, at::zeros({2, 2, 4}, at::kDouble)}, 1);
      wrong[static_cast<size_t>(rank)] =
          difference(full.narrow(1, 0, 7).contiguous(), out.detach().contiguous(), 0) +
          difference(padded_grad.narrow(1, rank * 3, 3), local.grad(), 0);
    });
    for (const std::string& text : wrong) CHECK(text == "");
  }
}

}  // namespace shardproof::tests
