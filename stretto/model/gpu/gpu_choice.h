// Tokens chosen on a GPU from the logits that lie there: one launch for all rows, a block for each
// (device/sm90/choose.h), which agrees with model/choice/token_choice.h token by token. The host
// sends what is wished of each row and gets the tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "stretto/model/choice/token_choice.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/cuda/nvrtc.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto {

using cuda::CUdeviceptr;

// From the cache after the first time. Errors of compile_cuda.
cuda::KernelImage compile_choice_kernel();

class GpuChooser {
 public:
  // Errors of compile_cuda. For rows of `vocab` logits, at most `max_rows` of them.
  GpuChooser(const cuda::Device& device, std::int64_t vocab, std::int64_t max_rows);

  std::int64_t max_rows() const { return max_rows_; }

  // Of the first rows of `logits` [rows, vocab] f32, which are as before afterwards: a wish each.
  // After the stream's work; only enqueues, but where there are more edits than fit. The token of
  // each row, 0 where none could be chosen, is left at `chosen` [wishes] i32, unless that is 0.
  void enqueue(const cuda::Stream& stream, CUdeviceptr logits, std::span<const ChoiceWish> wishes,
               CUdeviceptr chosen = 0);
  // Has passed when results() of the last enqueue() are there.
  const cuda::Event& done() const { return done_; }
  // Where a status is not kChosen nothing else of the result counts. Valid until the next
  // enqueue().
  std::span<const ChoiceResult> results() const;
  // Both, with the wait between them.
  std::span<const ChoiceResult> choose(const cuda::Stream& stream, CUdeviceptr logits,
                                       std::span<const ChoiceWish> wishes, CUdeviceptr chosen = 0);

  // For measuring: the last launch once more, without its copies; only enqueues.
  void replay(const cuda::Stream& stream) const;

 private:
  void enqueue_some(const cuda::Stream& stream, std::span<const ChoiceWish> wishes);

  std::int64_t vocab_, max_rows_, max_edits_, words_;  // words of a mask
  std::unique_ptr<cuda::Kernel> kernel_;
  cuda::DeviceMemory rows_, masks_, edits_, before_, results_;
  cuda::HostMappedMemory host_rows_, host_masks_, host_edits_, host_results_;
  cuda::Event done_;
  CUdeviceptr logits_ = 0, chosen_ = 0;
  std::size_t launched_ = 0, asked_ = 0;  // rows
};

}  // namespace stretto
