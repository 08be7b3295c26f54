// The inputs of a Ulysses group and its outputs.
#include <catch2/catch.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "parallel/ulysses/samples.h"
#include "parallel/ulysses/slice_inputs.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

// Rank r has r + 2 samples of different sizes, and rank 1 has none.
std::vector<Sample> brought_by(int64_t rank) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < (rank == 1 ? 0 : rank + 2); ++i) {
    Sample sample;
    sample["ids"] = at::arange(100 * rank + i, 100 * rank + i + 3 * i, at::kLong);
    sample["scores"] = random_tensor({i, 2}, 10 * rank + i).to(at::kBFloat16);
    sample["flag"] = at::full({}, i % 2 == 1, at::kBool);
    sample["prompt"] = std::to_string(rank) + std::string("\0\xff:", 3) + std::to_string(i);
    if (i == 1) sample["only here"] = std::string();
    samples.push_back(std::move(sample));
  }
  return samples;
}

bool same(const Sample& a, const Sample& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    if (x.first != y.first || x.second.index() != y.second.index()) return false;
    if (const auto* text = std::get_if<std::string>(&x.second)) {
      return *text == std::get<std::string>(y.second);
    }
    const at::Tensor &one = std::get<at::Tensor>(x.second), &other = std::get<at::Tensor>(y.second);
    return one.scalar_type() == other.scalar_type() && one.equal(other);
  });
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
    for (const auto run : {&run_emulated_ranks, &run_gloo_ranks}) {
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

TEST_CASE("groups of every size return dense copies on the CPU without a gradient", "[US-1]") {
  for (const int64_t size : {1, 2}) {
    INFO("a group of " << size);
    std::vector<std::string> problems(static_cast<size_t>(size));
    run_emulated_ranks(Mesh({{"ulysses", size}}), [&](MeshComm& comm, int64_t rank) {
      const at::Tensor whole = at::arange(100 * rank, 100 * rank + 12, at::kDouble).view({3, 4});
      const at::Tensor turned = whole.t();
      const at::Tensor leaf = at::ones({2}, at::kFloat).requires_grad_(true);
      const std::vector<Sample> own = {{{"turned", turned}, {"leaf", leaf}}};
      const auto all = gather_samples(own, comm.along("ulysses"), "samples", at::kCPU);
      const Sample& here = all.at(static_cast<size_t>(rank));
      const at::Tensor& copy = std::get<at::Tensor>(here.at("turned"));
      std::string& problem = problems[static_cast<size_t>(rank)];
      if (!copy.equal(turned)) problem += "values ";
      if (!copy.is_contiguous()) problem += "strides ";
      if (copy.is_alias_of(whole)) problem += "alias ";
      if (std::get<at::Tensor>(here.at("leaf")).requires_grad()) problem += "gradient ";
      whole.zero_();
      if (copy.sum().item<double>() == 0) problem += "memory ";
    });
    CHECK(problems == std::vector<std::string>(static_cast<size_t>(size)));
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

TEST_CASE("ids are padded with 0, positions as a sequence of their own", "[US-2]") {
  const at::Tensor ids = at::tensor({1, 2, 3, 4}, at::kLong).view({1, 4});
  std::vector<SlicedInputs> sliced(3);
  run_emulated_ranks(Mesh({{"ulysses", 3}}), [&](MeshComm& comm, int64_t rank) {
    sliced[static_cast<size_t>(rank)] = slice_and_pad_inputs(ids, ids * 7, comm.along("ulysses"));
  });
  for (const SlicedInputs& one : sliced) {
    CHECK(one.padding == 2);
    CHECK(one.position_ids->equal(at::tensor({7, 14, 21, 28, 0, 1}, at::kLong).view({1, 6})));
  }
  CHECK(sliced[1].input_ids.equal(at::tensor({3, 4}, at::kLong).view({1, 2})));
  CHECK(sliced[2].input_ids.equal(at::zeros({1, 2}, at::kLong)));
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

}  // namespace shardproof::tests
