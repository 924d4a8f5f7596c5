#include "stretto/model/gpu/gpu_batch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/model/gpu/step_kernels.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/step/check.h"

namespace stretto {
namespace {

constexpr std::size_t kInputAlignment = 256;

}  // namespace

GpuBatchStep::GpuBatchStep(GpuWorld& world, const ModelShape& shape,
                           const GpuBuffers& model_buffers, const BatchBounds& bounds,
                           const GpuModelOptions& options)
    : world_(world),
      group_(options.data_group ? options.data_group->world : world),
      shape_(shape),
      model_buffers_(model_buffers),
      early_starts_(options.early_starts),
      bounds_(bounds) {
  StepPlan step = plan_step(shape, bounds.rows);
  head_input_ = step.head_input;
  head_rows_ = step.head_rows;
  plan_ = batch_plan(shape, std::move(step));
  step::check(plan_);
  head_ = plan_.find_section(kHeadSection)->begin;
  load_programs(options);
  allocate();
  set_rows(bounds.rows, false);
  for (const step::Node& node : plan_.nodes) args_.push_back(bind(node));
  prepared_.resize(args_.size());
  const Program& head = plan_.program_of(plan_.nodes[head_]);
  head_tensor_ = static_cast<std::size_t>(head.find_tensor("x"));
  if (!options.graphs) return;
  if (options.progress != nullptr) options.progress->begin("capturing the launches");
  capture();
}

void GpuBatchStep::set_rows(std::int64_t count, bool only_decodes) {
  count_ = count;
  only_decodes_ = only_decodes;
  const std::vector<std::int64_t> now = values();
  extents_.resize(plan_.nodes.size());
  for (std::size_t i = 0; i < extents_.size(); ++i) {
    extents_[i] = step::eval(plan_.nodes[i].extents, now);
  }
}

std::vector<std::int64_t> GpuBatchStep::values() const {
  const StepRows all{.count = count_, .most = count_, .decodes = only_decodes_ ? count_ : 0};
  return batch_extents(shape_, all, head_rows_);
}

std::vector<std::size_t> GpuBatchStep::nodes() const {
  const step::Section& body = *plan_.find_section(kBodySection);
  const std::vector<std::int64_t> extents = values();
  std::vector<std::size_t> out;
  for (std::size_t i = body.begin; i < body.end; ++i) {
    const std::vector<step::Size>& of_node = plan_.nodes[i].extents;
    if (of_node.empty() || step::eval(of_node.front(), extents) > 0) out.push_back(i);
  }
  return out;
}

void GpuBatchStep::load_programs(const GpuModelOptions& options) {
  // Loading code and allocating may wait for what runs, so nothing may run that waits for us.
  world_.synchronize();
  const std::vector<ProveOptions> proofs = step_proofs(shape_, plan_, bounds_, world_.target());
  for (StepKernel& k : build_step_kernels(plan_, proofs, options.progress)) {
    of_group_.push_back(shape_.data_groups > 1 &&
                        k.program.program().world_size == shape_.world_size);
    GpuWorld& world = of_group_.back() ? group_ : world_;
    executables_.push_back(load(k.program, world, std::move(k.code)));
  }
}

std::vector<CUdeviceptr> GpuBatchStep::addresses_for(std::size_t program,
                                                     const std::vector<CUdeviceptr>& of_all) const {
  if (!of_group_[program]) return of_all;
  std::vector<CUdeviceptr> out;
  for (int r : ranks_of_group(shape_, world_.local_ranks().front())) {
    out.push_back(of_all[static_cast<std::size_t>(r)]);
  }
  return out;
}

Launch& GpuBatchStep::prepared(std::size_t node) {
  const Args& args = args_[node];
  std::shared_ptr<Launch>& kept = prepared_[node][args.starts_early ? 1 : 0];
  const auto program = static_cast<std::size_t>(plan_.nodes[node].program);
  if (!kept) kept = executables_[program]->prepare(args);
  return *kept;
}

void GpuBatchStep::launch(std::size_t node, int rank) {
  const auto program = static_cast<std::size_t>(plan_.nodes[node].program);
  const int own = of_group_[program] ? rank % shape_.world_size : rank;
  prepared(node).run(extents_[node], own, world_.stream(rank));
}

void GpuBatchStep::launch(std::size_t node) {
  const auto program = static_cast<std::size_t>(plan_.nodes[node].program);
  if (!of_group_[program]) return prepared(node).run(extents_[node]);
  if (group_.aborted()) group_.throw_fault();
  for (int r : world_.local_ranks()) launch(node, r);
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
  using step::BufferKind;
  const cuda::Device& first = world_.device(world_.local_ranks().front());
  // The host writes all inputs of the body.
  auto is_staged = [](const step::Buffer& b) {
    return b.kind == BufferKind::kInput && b.name != StepPlan::kWanted;
  };
  std::size_t input_bytes = 0;
  for (const step::Buffer& b : plan_.buffers) {
    if (!is_staged(b)) continue;
    input_at_[b.name] = input_bytes;
    input_bytes += ceil_div(step::num_bytes(plan_, b), kInputAlignment) * kInputAlignment;
  }
  inputs_ = world_.allocate(input_bytes);
  host_inputs_ = std::make_unique<cuda::HostMappedMemory>(first, input_bytes);
  std::fill_n(static_cast<std::byte*>(host_inputs_->host()), input_bytes, std::byte{0});
  for (const step::Buffer& b : plan_.buffers) {
    const bool is_model = b.kind == BufferKind::kConstant || b.kind == BufferKind::kState;
    if (is_model && !b.symmetric) continue;
    if (is_staged(b)) {
      for (CUdeviceptr a : inputs_.addresses()) {
        buffers_[b.name].push_back(a + input_at_.at(b.name));
      }
      continue;
    }
    const std::size_t bytes = step::num_bytes(plan_, b);
    memory_.push_back(world_.allocate(std::max<std::size_t>(bytes, 16)));
    buffers_[b.name] = memory_.back().addresses();
    for (int r : world_.local_ranks()) {
      const cuda::DeviceMemory& m = memory_.back().on[static_cast<std::size_t>(r)];
      world_.stream(r).fill_bytes(m.address(), 0, m.bytes());
    }
    if (b.name == StepPlan::kLogits) {
      host_logits_ = std::make_unique<cuda::HostMappedMemory>(first, bytes);
    }
  }
  world_.meet();
}

std::byte* GpuBatchStep::input(const std::string& name) {
  if (busy_) finish();
  return static_cast<std::byte*>(host_inputs_->host()) + input_at_.at(name);
}

const std::vector<CUdeviceptr>& GpuBatchStep::addresses_of(const std::string& buffer) const {
  auto own = buffers_.find(buffer);
  return own != buffers_.end() ? own->second : model_buffers_.at(buffer);
}

// Tensors begin with their buffers: where those of prompts begin behind the decodes, no row is told
// apart as one.
Args GpuBatchStep::bind(const step::Node& node) const {
  const Program& program = plan_.program_of(node);
  Args args;
  args.tensors.resize(program.tensors.size());
  for (const step::Binding& b : node.bindings) {
    STRETTO_CHECK(step::eval(b.from, values()) == 0, node.name + " does not begin at a row");
    args.tensors[static_cast<std::size_t>(program.find_tensor(b.tensor))].on =
        addresses_for(static_cast<std::size_t>(node.program), addresses_of(b.buffer));
  }
  return args;
}

void GpuBatchStep::enqueue_inputs(int rank, const cuda::Stream& stream) const {
  stream.upload(inputs_.on[static_cast<std::size_t>(rank)].address(), host_inputs_->host(),
                host_inputs_->bytes());
}

// Neither the first launch, which follows a copy instead of a kernel, nor the head.
void GpuBatchStep::set_early_starts(bool early) {
  for (std::size_t i = 1; i < head_; ++i) args_[i].starts_early = early;
}

void GpuBatchStep::capture() {
  set_early_starts(early_starts_);
  // A step of nothing but decodes is filled up with such rows where there is room for them.
  const bool fills_with_decodes = shape_.fills_by_kind() && bounds_.rows <= shape_.paged.sequences;
  for (std::int64_t count : bounds_.counts) {
    set_rows(count, false);
    const std::vector<std::size_t> all = nodes();
    graphs_[{count, false}] = capture_graphs();
    if (!fills_with_decodes) continue;
    set_rows(count, true);
    if (nodes() != all) graphs_[{count, true}] = capture_graphs();
  }
  set_early_starts(false);
}

std::vector<cuda::GraphExec> GpuBatchStep::capture_graphs(std::optional<int> program) {
  std::vector<cuda::GraphExec> graphs;
  for (int r : world_.local_ranks()) {
    const cuda::Stream& stream = world_.stream(r);
    graphs.push_back(cuda::capture(stream, [&] {
      if (!program) enqueue_inputs(r, stream);
      for (std::size_t node : nodes()) {
        if (!program || plan_.nodes[node].program == *program) launch(node, r);
      }
    }));
  }
  return graphs;
}

void GpuBatchStep::enqueue_step() {
  auto graphs = graphs_.find({count_, only_decodes_});
  // Launches for prompts, of which there are none, do nothing.
  if (graphs == graphs_.end()) graphs = graphs_.find({count_, false});
  if (graphs != graphs_.end()) {
    for (int r : world_.local_ranks()) {
      graphs->second[world_.local_index(r)].launch(world_.stream(r));
    }
    return;
  }
  set_rows(count_, only_decodes_);
  for (int r : world_.local_ranks()) enqueue_inputs(r, world_.stream(r));
  // Launch by launch on all ranks: a rank far ahead of the others would fill its queue.
  for (std::size_t node : nodes()) launch(node);
}

void GpuBatchStep::run(const StepRows& rows) {
  STRETTO_CHECK(std::ranges::count(bounds_.counts, rows.count) == 1,
                "a step that was not filled up");
  count_ = rows.count;
  only_decodes_ = rows.decodes == rows.count;
  busy_ = true;
  enqueue_step();
}

// The rows of `rows` into the head's input, unless they are the first.
void GpuBatchStep::enqueue_head(std::span<const std::int64_t> rows) {
  const step::Buffer& rows_of =
      plan_.buffers[static_cast<std::size_t>(plan_.find_buffer(head_input_))];
  const std::size_t bytes = step::row_bytes(plan_, rows_of);
  auto follows = [&](std::size_t i) { return i > 0 && rows[i] == rows[i - 1] + 1; };
  auto run_end = [&](std::size_t i) {
    do ++i;
    while (i < rows.size() && follows(i));
    return i;
  };
  std::vector<CUdeviceptr> input = buffers_.at(head_input_);
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
  const auto program = static_cast<std::size_t>(plan_.nodes[head_].program);
  std::vector<CUdeviceptr>& on = args_[head_].tensors[head_tensor_].on;
  std::vector<CUdeviceptr> now = addresses_for(program, input);
  if (on != now) {
    on = std::move(now);
    prepared_[head_] = {};
  }
  launch(head_);
}

const float* GpuBatchStep::logits(std::span<const std::int64_t> rows) {
  STRETTO_CHECK(!rows.empty() && static_cast<std::int64_t>(rows.size()) <= head_rows_,
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
  STRETTO_CHECK(!rows.empty() && static_cast<std::int64_t>(rows.size()) <= head_rows_ &&
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

std::vector<GpuBatchStep::ProgramTime> GpuBatchStep::time_programs(int times) {
  using Clock = std::chrono::steady_clock;
  std::vector<ProgramTime> out;
  auto time = [&](const std::string& name, int launches, const auto& enqueue) {
    enqueue();
    world_.synchronize();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < times; ++i) enqueue();
    finish();
    const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
    out.push_back({.name = name, .launches = launches, .ms = taken.count() / times});
  };
  set_rows(count_, only_decodes_);
  const std::vector<std::size_t> all = nodes();
  for (std::size_t p = 0; p < executables_.size(); ++p) {
    const auto program = static_cast<int>(p);
    const auto launches = static_cast<int>(std::ranges::count_if(
        all, [&](std::size_t node) { return plan_.nodes[node].program == program; }));
    if (launches == 0) continue;
    set_early_starts(early_starts_);
    std::vector<cuda::GraphExec> graphs = capture_graphs(program);
    set_early_starts(false);
    time(executables_[p]->program().name, launches, [&] {
      for (int r : world_.local_ranks()) graphs[world_.local_index(r)].launch(world_.stream(r));
    });
  }
  time("head", 1, [&] { enqueue_head(std::vector<std::int64_t>{0}); });
  return out;
}

void GpuBatchStep::finish() {
  world_.synchronize();
  for (GpuWorld* world : {&group_, &world_}) {
    if (world->aborted()) world->throw_fault();
  }
  busy_ = false;
}

GpuBatchRunner::GpuBatchRunner(GpuWorld& world, std::shared_ptr<const GpuModel> model,
                               PagedCache::Attention attention, const GpuModelOptions& options)
    : world_(world), model_(std::move(model)), shape_(model_->shape()), options_(options) {
  shape_.paged.attention = attention;
  if (shape_.shares_experts()) meeting_.emplace(options.data_group->rank);
}

std::unique_ptr<BatchStep> GpuBatchRunner::make_step(const BatchBounds& bounds) {
  ModelShape shape = shape_;
  shape.paged.sequences = bounds.sequences;
  auto step = std::make_unique<GpuBatchStep>(world_, shape, model_->buffers(), bounds, options_);
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
