#include "stretto/model/gpu/gpu_batch.h"

#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/model/gpu/step_kernels.h"

namespace stretto {
namespace {

constexpr std::size_t kInputAlignment = 256;

}  // namespace

GpuBatchStep::GpuBatchStep(GpuWorld& world, const ModelShape& shape,
                           const GpuBuffers& model_buffers, std::int64_t bound,
                           const GpuModelOptions& options)
    : world_(world),
      shape_(shape),
      model_buffers_(model_buffers),
      early_starts_(options.early_starts),
      plan_(plan_step(shape, bound)) {
  // Loading code and allocating may wait for what runs, so nothing may run that waits for us.
  world_.synchronize();
  const ProveOptions proof{.bounds_only = true, .gpu = world.target()};
  for (StepKernel& k : build_step_kernels(shape_, plan_, proof, options.progress)) {
    executables_.push_back(load_on_all(k.program, world_, std::move(k.code)));
  }
  allocate();
  StepRows rows{.count = bound, .most = bound};
  for (const PlanLaunch& l : plan_.launches) {
    args_.push_back(bind(l));
    args_.back().extents = launch_extents(l, rows, shape_);
  }
  head_args_ = bind(plan_.head);
  head_args_.extents = {plan_.head_rows};
  const Program& head = executables_[plan_.head.program]->program();
  head_tensor_ = static_cast<std::size_t>(head.find_tensor("x"));
  if (!options.graphs) return;
  if (options.progress != nullptr) options.progress->begin("capturing the launches");
  capture();
}

// Launches that such a step needs none of.
bool GpuBatchStep::leaves_out(const PlanLaunch& launch) const {
  return only_decodes_ && launch.rows == Rows::kPrompts;
}

// Memory and code may go only once nothing runs that uses them.
GpuBatchStep::~GpuBatchStep() {
  try {
    world_.synchronize();
  } catch (const Error&) {
    // Whoever enqueued the work that failed was told, or will be at the next call.
  }
}

void GpuBatchStep::allocate() {
  const cuda::Device& first = world_.device(world_.local_ranks().front());
  std::size_t input_bytes = 0;
  for (const PlanBuffer& b : plan_.buffers) {
    row_bytes_[b.name] = b.bytes() / static_cast<std::size_t>(b.rows);
    if (!b.input) continue;
    input_at_[b.name] = input_bytes;
    input_bytes += (b.bytes() + kInputAlignment - 1) / kInputAlignment * kInputAlignment;
  }
  inputs_ = world_.allocate(input_bytes);
  host_inputs_ = std::make_unique<cuda::HostMappedMemory>(first, input_bytes);
  std::fill_n(static_cast<std::byte*>(host_inputs_->host()), input_bytes, std::byte{0});
  for (const PlanBuffer& b : plan_.buffers) {
    if (b.input) {
      for (CUdeviceptr a : inputs_.addresses()) {
        buffers_[b.name].push_back(a + input_at_.at(b.name));
      }
      continue;
    }
    memory_.push_back(world_.allocate(std::max<std::size_t>(b.bytes(), 16)));
    buffers_[b.name] = memory_.back().addresses();
    for (int r : world_.local_ranks()) {
      const cuda::DeviceMemory& m = memory_.back().on[static_cast<std::size_t>(r)];
      world_.stream(r).fill_bytes(m.address(), 0, m.bytes());
    }
    if (b.name == StepPlan::kLogits) {
      host_logits_ = std::make_unique<cuda::HostMappedMemory>(first, b.bytes());
    }
  }
  world_.meet();
}

std::byte* GpuBatchStep::input(const std::string& name) {
  if (busy_) finish();
  return static_cast<std::byte*>(host_inputs_->host()) + input_at_.at(name);
}

GpuLaunchArgs GpuBatchStep::bind(const PlanLaunch& launch) const {
  const Program& program = executables_[launch.program]->program();
  GpuLaunchArgs args;
  args.tensors.resize(program.tensors.size());
  for (const Binding& b : launch.bindings) {
    int t = program.find_tensor(b.tensor);
    STRETTO_CHECK(t >= 0, program.name + " has no tensor " + b.tensor);
    auto own = buffers_.find(b.buffer);
    args.tensors[static_cast<std::size_t>(t)] =
        own != buffers_.end() ? own->second : model_buffers_.at(b.buffer);
  }
  return args;
}

std::shared_ptr<GpuLaunches> GpuBatchStep::prepare(const PlanLaunch& launch,
                                                   const GpuLaunchArgs& args) {
  return executables_[launch.program]->prepare(args);
}

void GpuBatchStep::enqueue_inputs(int rank, const cuda::Stream& stream) const {
  stream.upload(inputs_.on[static_cast<std::size_t>(rank)].address(), host_inputs_->host(),
                host_inputs_->bytes());
}

// Not the first launch, which follows a copy instead of a kernel.
void GpuBatchStep::set_early_starts(bool early) {
  for (std::size_t i = 1; i < args_.size(); ++i) args_[i].starts_early = early;
}

void GpuBatchStep::capture() {
  set_early_starts(early_starts_);
  graphs_ = capture_graphs();
  // A step of nothing but decodes is filled up with such rows where there is room for them.
  bool some = shape_.fills_by_kind() && plan_.bound <= shape_.paged.sequences;
  if (some && !shape_.only_decodes(plan_.bound)) {
    only_decodes_ = true;
    decode_graphs_ = capture_graphs();
    only_decodes_ = false;
  }
  set_early_starts(false);
}

std::vector<cuda::GraphExec> GpuBatchStep::capture_graphs() {
  std::vector<cuda::GraphExec> graphs;
  for (int r : world_.local_ranks()) {
    const cuda::Stream& stream = world_.stream(r);
    graphs.push_back(cuda::capture(stream, [&] {
      enqueue_inputs(r, stream);
      for (std::size_t i = 0; i < args_.size(); ++i) {
        if (leaves_out(plan_.launches[i])) continue;
        prepare(plan_.launches[i], args_[i])->run(args_[i].extents, r, stream);
      }
    }));
  }
  return graphs;
}

void GpuBatchStep::enqueue_step() {
  const std::vector<cuda::GraphExec>& graphs =
      only_decodes_ && !decode_graphs_.empty() ? decode_graphs_ : graphs_;
  if (!graphs.empty()) {
    for (int r : world_.local_ranks()) graphs[world_.local_index(r)].launch(world_.stream(r));
    return;
  }
  for (int r : world_.local_ranks()) enqueue_inputs(r, world_.stream(r));
  // Launch by launch on all ranks: a rank far ahead of the others would fill its queue.
  for (std::size_t i = 0; i < args_.size(); ++i) {
    if (leaves_out(plan_.launches[i])) continue;
    prepare(plan_.launches[i], args_[i])->run(args_[i].extents);
  }
}

void GpuBatchStep::run(const StepRows& rows) {
  STRETTO_CHECK(rows.count == plan_.bound, "a step that was not filled up");
  only_decodes_ = shape_.fills_by_kind() && rows.decodes == rows.count;
  busy_ = true;
  enqueue_step();
}

// The rows of `rows` into the head's input, unless they are the first.
void GpuBatchStep::enqueue_head(std::span<const std::int64_t> rows) {
  const std::size_t bytes = row_bytes_.at(plan_.head_input);
  auto follows = [&](std::size_t i) { return i > 0 && rows[i] == rows[i - 1] + 1; };
  auto run_end = [&](std::size_t i) {
    do ++i;
    while (i < rows.size() && follows(i));
    return i;
  };
  std::vector<CUdeviceptr> input = buffers_.at(plan_.head_input);
  if (rows[0] != 0 || run_end(0) != rows.size()) {
    for (int r : world_.local_ranks()) {
      auto at = static_cast<std::size_t>(r);
      CUdeviceptr wanted = buffers_.at(StepPlan::kWanted)[at];
      for (std::size_t i = 0; i < rows.size(); i = run_end(i)) {
        world_.stream(r).copy(wanted + i * bytes,
                              input[at] + static_cast<CUdeviceptr>(rows[i]) * bytes,
                              (run_end(i) - i) * bytes);
      }
    }
    input = buffers_.at(StepPlan::kWanted);
  }
  head_args_.tensors[head_tensor_] = std::move(input);
  prepare(plan_.head, head_args_)->run(head_args_.extents);
}

const float* GpuBatchStep::logits(std::span<const std::int64_t> rows) {
  STRETTO_CHECK(!rows.empty() && static_cast<std::int64_t>(rows.size()) <= plan_.head_rows,
                "logits outside the step");
  enqueue_head(rows);
  int first = world_.local_ranks().front();
  auto vocab = static_cast<std::size_t>(shape_.config->vocab_size);
  world_.stream(first).download(host_logits_->host(),
                                buffers_.at(StepPlan::kLogits)[static_cast<std::size_t>(first)],
                                rows.size() * vocab * sizeof(float));
  finish();
  return static_cast<const float*>(host_logits_->host());
}

std::span<const ChoiceResult> GpuBatchStep::choose(std::span<const std::int64_t> rows,
                                                   std::span<const ChoiceWish> wishes) {
  STRETTO_CHECK(!rows.empty() && static_cast<std::int64_t>(rows.size()) <= plan_.head_rows &&
                    rows.size() == wishes.size(),
                "choices outside the step");
  enqueue_head(rows);
  const int first = world_.local_ranks().front();
  std::span<const ChoiceResult> results =
      chooser_->choose(world_.stream(first),
                       buffers_.at(StepPlan::kLogits)[static_cast<std::size_t>(first)], wishes);
  finish();
  return results;
}

void GpuBatchStep::replay(int times) {
  busy_ = true;
  for (int i = 0; i < times; ++i) {
    enqueue_step();
    enqueue_head(std::vector<std::int64_t>{0});
  }
  finish();
}

void GpuBatchStep::finish() {
  world_.synchronize();
  if (world_.aborted()) world_.throw_fault();
  busy_ = false;
}

GpuBatchRunner::GpuBatchRunner(GpuWorld& world, std::shared_ptr<const GpuModel> model,
                               PagedCache::Attention attention, const GpuModelOptions& options)
    : world_(world), model_(std::move(model)), shape_(model_->shape()), options_(options) {
  shape_.paged.attention = attention;
}

std::unique_ptr<BatchStep> GpuBatchRunner::make_step(std::int64_t bound, std::int64_t sequences) {
  ModelShape shape = shape_;
  shape.paged.sequences = sequences;
  auto step = std::make_unique<GpuBatchStep>(world_, shape, model_->buffers(), bound, options_);
  if (!chooser_) {
    // Every step has as many rows of the head at most as the largest, which is made first.
    chooser_ = std::make_unique<GpuChooser>(world_.device(world_.local_ranks().front()),
                                            shape_.config->vocab_size, step->head_rows());
  }
  STRETTO_CHECK(step->head_rows() <= chooser_->max_rows(), "a step with more rows than the first");
  step->set_chooser(chooser_.get());
  return step;
}

}  // namespace stretto
