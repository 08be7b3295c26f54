#include "comm/lent_memory.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shardproof {
namespace {

class LentWork final : public c10d::Work {
 public:
  LentWork(c10::intrusive_ptr<c10d::Work> inner, std::vector<at::Tensor> memory)
      : inner_(std::move(inner)), memory_(std::move(memory)) {}
  ~LentWork() override {
    if (memory_.empty() || inner_->isCompleted()) return;
    inner_->getFuture()->addCallback([memory = std::move(memory_)](c10::ivalue::Future&) {});
  }
  LentWork(const LentWork&) = delete;
  LentWork& operator=(const LentWork&) = delete;

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  void abort() override { inner_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool good = inner_->wait(timeout);
    memory_.clear();
    return good;
  }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  std::vector<at::Tensor> memory_;
};

}  // namespace

at::Tensor alias_without_owner(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

c10::intrusive_ptr<c10d::Work> keeping_until_waited(c10::intrusive_ptr<c10d::Work> work,
                                                    std::vector<at::Tensor> memory) {
  return c10::make_intrusive<LentWork>(std::move(work), std::move(memory));
}

}  // namespace shardproof
