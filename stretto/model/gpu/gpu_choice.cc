#include "stretto/model/gpu/gpu_choice.h"

#include <algorithm>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/device/device_sources.h"

namespace stretto {
namespace {

constexpr const char* kKernel = "stretto_choose";
constexpr unsigned kThreads = 512;                          // kChoiceThreads of the device's text
constexpr std::int64_t kUsualEdits = 1 << 18;               // of a launch; a row may have more
constexpr std::int64_t kMostVocab = std::int64_t{1} << 24;  // whose weights add up to 64 bits

template <typename T>
std::size_t bytes_of(std::int64_t count) {
  return sizeof(T) * static_cast<std::size_t>(count);
}

constexpr const char* kText = R"(#include "stretto/device/sm90/choose.h"

extern "C" __global__ void __launch_bounds__(512, 2) stretto_choose(
    const ChoiceRow* rows, ChoiceResult* results, float* logits, const u32* masks,
    const ChoiceEdit* edits, float* before, i32* chosen, u32 vocab) {
  __shared__ ChoiceShared s;
  __shared__ AskedRow asked;
  if (threadIdx.x == 0) {
    const ChoiceRow row = rows[blockIdx.x];
    const u64 words = (vocab + 31) / 32;
    asked = {row, edits + row.first_edit, before + row.first_edit,
             row.mask < 0 ? nullptr : masks + u64(row.mask) * words, results + blockIdx.x};
  }
  __syncthreads();
  choose_from_row(s, logit_row(logits + u64(blockIdx.x) * vocab, nullptr, vocab), asked);
  if (threadIdx.x == 0 && chosen != nullptr) {
    const ChoiceResult& result = results[blockIdx.x];
    const bool is_there = result.status == ChoiceStatus::kChosen;
    chosen[blockIdx.x] = is_there ? i32(result.token) : 0;
  }
}
)";

}  // namespace

cuda::KernelImage compile_choice_kernel() {
  // The definition multiplies and adds one after the other.
  return cuda::compile_cuda(expand_includes(kText), "choose.cu", {.extra_flags = {"--fmad=false"}});
}

GpuChooser::GpuChooser(const cuda::Device& device, std::int64_t vocab, std::int64_t max_rows)
    : vocab_(vocab),
      max_rows_(max_rows),
      max_edits_(std::max(kUsualEdits, vocab)),
      words_((vocab + 31) / 32),
      rows_(device, bytes_of<ChoiceRow>(max_rows)),
      masks_(device, bytes_of<std::uint32_t>(max_rows * words_)),
      edits_(device, bytes_of<ChoiceEdit>(max_edits_)),
      before_(device, bytes_of<float>(max_edits_)),
      results_(device, bytes_of<ChoiceResult>(max_rows)),
      host_rows_(device, rows_.bytes()),
      host_masks_(device, masks_.bytes()),
      host_edits_(device, edits_.bytes()),
      host_results_(device, results_.bytes()),
      done_(device) {
  STRETTO_CHECK(vocab >= 1 && vocab <= kMostVocab && max_rows >= 1, "rows outside their bounds");
  cuda::Module module(device, compile_choice_kernel().cubin, "choose");
  kernel_ = std::make_unique<cuda::Kernel>(module, kKernel);
}

std::span<const ChoiceResult> GpuChooser::choose(const cuda::Stream& stream, CUdeviceptr logits,
                                                 std::span<const ChoiceWish> wishes,
                                                 CUdeviceptr chosen) {
  enqueue(stream, logits, wishes, chosen);
  done_.synchronize();
  return results();
}

std::span<const ChoiceResult> GpuChooser::results() const {
  return {static_cast<const ChoiceResult*>(host_results_.host()), asked_};
}

void GpuChooser::enqueue(const cuda::Stream& stream, CUdeviceptr logits,
                         std::span<const ChoiceWish> wishes, CUdeviceptr chosen) {
  STRETTO_CHECK(static_cast<std::int64_t>(wishes.size()) <= max_rows_,
                "more rows than there is room");
  done_.synchronize();  // the last wishes have been copied from where these will lie
  // As many at a time as their edits have room; all, but for very long texts.
  for (std::size_t from = 0, to = 0; from < wishes.size(); from = to) {
    std::int64_t edits = 0;
    while (to < wishes.size() && edits + std::ssize(wishes[to].edits) <= max_edits_) {
      edits += std::ssize(wishes[to++].edits);
    }
    STRETTO_CHECK(to > from, "a row with more edits than tokens");
    if (from > 0) stream.synchronize();  // whose wishes lie where these will
    logits_ = logits + from * static_cast<std::size_t>(vocab_) * sizeof(float);
    chosen_ = chosen == 0 ? 0 : chosen + from * sizeof(std::int32_t);
    enqueue_some(stream, wishes.subspan(from, to - from));
    stream.download(static_cast<ChoiceResult*>(host_results_.host()) + from, results_.address(),
                    (to - from) * sizeof(ChoiceResult));
  }
  stream.record(done_);
  asked_ = wishes.size();
}

void GpuChooser::enqueue_some(const cuda::Stream& stream, std::span<const ChoiceWish> wishes) {
  auto* rows = static_cast<ChoiceRow*>(host_rows_.host());
  auto* masks = static_cast<std::uint32_t*>(host_masks_.host());
  auto* edits = static_cast<ChoiceEdit*>(host_edits_.host());
  const auto words = static_cast<std::size_t>(words_);
  std::size_t num_masks = 0, num_edits = 0;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    const ChoiceWish& w = wishes[i];
    rows[i] = w.row;
    rows[i].mask = -1;
    STRETTO_CHECK(w.row.num_top <= kMostChoiceTop, "more alternatives than a kernel finds");
    if (!w.allowed.empty()) {
      STRETTO_CHECK(w.allowed.size() == words, "a mask of other tokens");
      std::memcpy(masks + num_masks * words, w.allowed.data(), w.allowed.size_bytes());
      rows[i].mask = static_cast<int>(num_masks++);
    }
    rows[i].first_edit = static_cast<unsigned>(num_edits);
    rows[i].num_edits = static_cast<unsigned>(w.edits.size());
    std::copy(w.edits.begin(), w.edits.end(), edits + num_edits);
    num_edits += w.edits.size();
  }
  stream.upload(rows_.address(), rows, wishes.size() * sizeof(ChoiceRow));
  if (num_masks > 0) stream.upload(masks_.address(), masks, num_masks * words * sizeof(*masks));
  if (num_edits > 0) stream.upload(edits_.address(), edits, num_edits * sizeof(ChoiceEdit));
  launched_ = wishes.size();
  replay(stream);
}

void GpuChooser::replay(const cuda::Stream& stream) const {
  CUdeviceptr rows = rows_.address(), results = results_.address(), logits = logits_;
  CUdeviceptr masks = masks_.address(), edits = edits_.address(), before = before_.address();
  CUdeviceptr chosen = chosen_;
  auto vocab = static_cast<unsigned>(vocab_);
  void* args[] = {&rows, &results, &logits, &masks, &edits, &before, &chosen, &vocab};
  kernel_->launch(stream, {.grid = {static_cast<unsigned>(launched_)}, .block = {kThreads}}, args);
}

}  // namespace stretto
