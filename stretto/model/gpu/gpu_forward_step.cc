#include "stretto/model/gpu/gpu_forward_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/statistics.h"
#include "stretto/model/gpu/step_kernels.h"

namespace stretto {
namespace {

// Steps enqueued beyond the token that the host looks at: enough that no GPU waits for it, and few
// enough that little is thrown away at the end of a text.
constexpr std::int64_t kAhead = 3;

bool is_weight(const std::string& name) {
  return name != "cos" && name != "sin" && !name.ends_with("_cache");
}

}  // namespace

GpuForwardStep::GpuForwardStep(GpuWorld& world, const ModelShape& shape,
                               const GpuBuffers& model_buffers, std::int64_t bound,
                               const GpuModelOptions& options)
    : world_(world),
      group_(options.data_group ? options.data_group->world : world),
      shape_(shape),
      model_buffers_(model_buffers),
      plan_(plan_step(shape, bound)),
      // A group's step may be without rows, which a graph could not say.
      graphs_wanted_(options.graphs && bound == 1 && shape.data_groups == 1),
      early_starts_(options.early_starts) {
  load_programs();
  allocate();
  for (const PlanLaunch& l : plan_.launches) {
    args_.push_back(bind(l));
    if (l.rows == Rows::kAllAndPast) {
      args_.back().scalars = addresses_for(l.program, inputs_.addresses());
    }
  }
  head_args_ = bind(plan_.head);
  if (plan_.choose) {
    choose_args_ = bind(*plan_.choose);
    choose_args_.extents = {0};
    choose_args_.scalars = addresses_for(plan_.choose->program, inputs_.addresses());
  }
  const Program& head = executables_[plan_.head.program]->program();
  head_tensor_ = static_cast<std::size_t>(head.find_tensor("x"));
  head_input_ = head_args_.tensors[head_tensor_];
}

int GpuForwardStep::rank_for(std::size_t program, int rank) const {
  return of_group_[program] ? rank % shape_.world_size : rank;
}

std::vector<CUdeviceptr> GpuForwardStep::addresses_for(
    std::size_t program, const std::vector<CUdeviceptr>& of_all) const {
  if (!of_group_[program]) return of_all;
  std::vector<CUdeviceptr> out;
  for (int r : ranks_of_group(shape_, world_.local_ranks().front())) {
    out.push_back(of_all[static_cast<std::size_t>(r)]);
  }
  return out;
}

void GpuForwardStep::launch(std::size_t program, const GpuLaunchArgs& args, int rank,
                            const cuda::Stream& stream) {
  executables_[program]->prepare(args)->run(args.extents, rank_for(program, rank), stream);
}

void GpuForwardStep::launch(std::size_t program, const GpuLaunchArgs& args) {
  if (!of_group_[program]) return executables_[program]->prepare(args)->run(args.extents);
  if (group_.aborted()) group_.throw_fault();
  for (int r : world_.local_ranks()) launch(program, args, r, world_.stream(r));
}

// Memory and code may go only once nothing runs that uses them.
GpuForwardStep::~GpuForwardStep() {
  try {
    world_.synchronize();
  } catch (const Error&) {
    // Whoever enqueued the work that failed was told, or will be at the next call.
  }
}

void GpuForwardStep::load_programs() {
  // Loading code and allocating may wait for what runs, so nothing may run that waits for us.
  world_.synchronize();
  for (StepKernel& k : build_step_kernels(shape_, plan_, {.gpu = world_.target()})) {
    bool of_group = shape_.data_groups > 1 && k.program.program().world_size == shape_.world_size;
    GpuWorld& world = of_group ? group_ : world_;
    executables_.push_back(load_on_all(k.program, world, std::move(k.code)));
    of_group_.push_back(of_group);
  }
}

void GpuForwardStep::allocate() {
  auto tokens_bytes = static_cast<std::size_t>(plan_.bound) * sizeof(std::int32_t);
  std::size_t input_bytes = kTokensOffset + tokens_bytes;
  inputs_ = world_.allocate(input_bytes);
  host_inputs_ = std::make_unique<cuda::HostMappedMemory>(
      world_.device(world_.local_ranks().front()), input_bytes);
  for (CUdeviceptr a : inputs_.addresses()) {
    buffers_[StepPlan::kTokens].push_back(a + kTokensOffset);
  }
  if (plan_.choose) allocate_choice();
  for (const PlanBuffer& b : plan_.buffers) {
    if (b.name == StepPlan::kTokens) continue;
    memory_.push_back(world_.allocate(std::max<std::size_t>(b.bytes(), 16)));
    buffers_[b.name] = memory_.back().addresses();
    for (int r : world_.local_ranks()) {
      const cuda::DeviceMemory& m = memory_.back().on[static_cast<std::size_t>(r)];
      world_.stream(r).fill_bytes(m.address(), 0, m.bytes());
    }
    if (b.name == StepPlan::kLogits) {
      host_logits_ = std::make_unique<cuda::HostMappedMemory>(
          world_.device(world_.local_ranks().front()), b.bytes());
    }
  }
  world_.meet();
}

GpuLaunchArgs GpuForwardStep::bind(const PlanLaunch& launch) const {
  const Program& program = executables_[launch.program]->program();
  GpuLaunchArgs args;
  args.tensors.resize(program.tensors.size());
  for (const Binding& b : launch.bindings) {
    int t = program.find_tensor(b.tensor);
    STRETTO_CHECK(t >= 0, program.name + " has no tensor " + b.tensor);
    auto own = buffers_.find(b.buffer);
    args.tensors[static_cast<std::size_t>(t)] = addresses_for(
        launch.program, own != buffers_.end() ? own->second : model_buffers_.at(b.buffer));
  }
  return args;
}

void GpuForwardStep::finish() {
  world_.synchronize();
  for (GpuWorld* world : {&group_, &world_}) {
    if (world->aborted()) world->throw_fault();
  }
  busy_ = false;
}

void GpuForwardStep::set_inputs(std::span<const int> tokens, std::int64_t past) {
  if (busy_) finish();
  auto* host = static_cast<std::byte*>(host_inputs_->host());
  std::memcpy(host, &past, sizeof(past));
  if (!tokens.empty()) std::memcpy(host + kTokensOffset, tokens.data(), tokens.size_bytes());
  busy_ = true;
}

void GpuForwardStep::enqueue_inputs(int rank, const cuda::Stream& stream) const {
  stream.upload(inputs_.on[static_cast<std::size_t>(rank)].address(), host_inputs_->host(),
                host_inputs_->bytes());
}

void GpuForwardStep::set_extents(const StepRows& rows) {
  for (std::size_t i = 0; i < args_.size(); ++i) {
    args_[i].extents = launch_extents(plan_.launches[i], rows, shape_);
  }
}

void GpuForwardStep::enqueue_step(int rank, const cuda::Stream& stream) {
  for (std::size_t i = 0; i < args_.size(); ++i) {
    launch(plan_.launches[i].program, args_[i], rank, stream);
  }
}

void GpuForwardStep::enqueue_logits(const cuda::Stream& stream, std::int64_t count) const {
  auto vocab = static_cast<std::size_t>(shape_.config->vocab_size);
  auto first = static_cast<std::size_t>(world_.local_ranks().front());
  stream.download(host_logits_->host(), buffers_.at(StepPlan::kLogits)[first],
                  static_cast<std::size_t>(count) * vocab * sizeof(float));
}

// Of the step as args_ stand, head and logits included.
void GpuForwardStep::capture() {
  head_args_.tensors[head_tensor_] = head_input_;
  head_args_.extents = {1};
  std::vector<cuda::GraphExec> graphs;
  set_early_starts(early_starts_);
  for (int r : world_.local_ranks()) {
    const cuda::Stream& stream = world_.stream(r);
    graphs.push_back(cuda::capture(stream, [&] {
      enqueue_inputs(r, stream);
      enqueue_step(r, stream);
      launch(plan_.head.program, head_args_, r, stream);
      if (r == world_.local_ranks().front()) enqueue_logits(stream, 1);
    }));
  }
  set_early_starts(false);
  graphs_ = std::move(graphs);  // of all ranks, or none
}

// Not the first launch, which follows a copy instead of a kernel.
void GpuForwardStep::set_early_starts(bool early) {
  for (std::size_t i = 1; i < args_.size(); ++i) args_[i].starts_early = early;
  head_args_.starts_early = early;
  choose_args_.starts_early = early;
}

void GpuForwardStep::run(std::span<const int> tokens, std::int64_t past, std::int64_t most) {
  auto count = static_cast<std::int64_t>(tokens.size());
  STRETTO_CHECK(
      count <= most && most >= 1 && most <= plan_.bound && past + count <= shape_.max_tokens,
      "a step outside its bucket or the cache");
  set_inputs(tokens, past);
  set_extents({.count = count, .past = past, .most = most});
  // The first step runs launch by launch, so that an error names its launch.
  if (graphs_wanted_ && warm_) {
    if (graphs_.empty()) capture();
    for (int r : world_.local_ranks()) {
      graphs_[world_.local_index(r)].launch(world_.stream(r));
    }
    logits_enqueued_ = true;
    return;
  }
  for (int r : world_.local_ranks()) enqueue_inputs(r, world_.stream(r));
  // Launch by launch on all ranks: a rank far ahead of the others would fill its queue.
  for (std::size_t i = 0; i < args_.size(); ++i) {
    std::size_t program = plan_.launches[i].program;
    if (count > 0 || !of_group_[program]) launch(program, args_[i]);
  }
  warm_ = true;
  logits_enqueued_ = false;
}

const float* GpuForwardStep::logits(std::int64_t first, std::int64_t count) {
  STRETTO_CHECK(count >= 1 && count <= plan_.head_rows && first + count <= plan_.bound,
                "logits outside the step");
  if (!logits_enqueued_) {
    std::int64_t row_bytes = shape_.config->hidden_size * std::int64_t(size_bytes(shape_.dtype));
    for (std::size_t r = 0; r < head_input_.size(); ++r) {
      head_args_.tensors[head_tensor_][r] =
          head_input_[r] + static_cast<CUdeviceptr>(first * row_bytes);
    }
    head_args_.extents = {count};
    launch(plan_.head.program, head_args_);
    enqueue_logits(world_.stream(world_.local_ranks().front()), count);
  }
  finish();
  return static_cast<const float*>(host_logits_->host());
}

void GpuForwardStep::replay(int times) {
  if (graphs_.empty()) throw UserError("no step was captured that could be replayed");
  for (int i = 0; i < times; ++i) {
    for (int r : world_.local_ranks()) {
      graphs_[world_.local_index(r)].launch(world_.stream(r));
    }
  }
  busy_ = true;
  finish();
}

// --- greedy tokens: the host is told of one some steps after the GPUs went on from it ---

void GpuForwardStep::allocate_choice() {
  std::size_t bytes = static_cast<std::size_t>(shape_.max_tokens) * sizeof(std::int32_t);
  next_inputs_ = world_.allocate(inputs_.on[0].bytes());
  history_ = world_.allocate(bytes);
  host_history_ =
      std::make_unique<cuda::HostMappedMemory>(world_.device(world_.local_ranks().front()), bytes);
  for (CUdeviceptr a : next_inputs_.addresses()) {
    buffers_[StepPlan::kNextPast].push_back(a);
    buffers_[StepPlan::kNextToken].push_back(a + kTokensOffset);
  }
  buffers_[StepPlan::kHistory] = history_.addresses();
  auto first = static_cast<std::size_t>(world_.local_ranks().front());
  buffers_[StepPlan::kHistory][first] = host_history_->address();
}

// In order, head and choice included.
void GpuForwardStep::each_launch_to_choice(const UseLaunch& use) {
  head_args_.tensors[head_tensor_] = head_input_;
  head_args_.extents = {1};
  for (std::size_t i = 0; i < args_.size(); ++i) {
    use(plan_.launches[i].program, args_[i]);
  }
  use(plan_.head.program, head_args_);
  use(plan_.choose->program, choose_args_);
}

void GpuForwardStep::enqueue_next_inputs(int rank, const cuda::Stream& stream) const {
  auto at = static_cast<std::size_t>(rank);
  stream.copy(inputs_.on[at].address(), next_inputs_.on[at].address(), inputs_.on[at].bytes());
}

void GpuForwardStep::capture_greedy() {
  std::vector<cuda::GraphExec> graphs;
  set_early_starts(early_starts_);
  for (int r : world_.local_ranks()) {
    const cuda::Stream& stream = world_.stream(r);
    graphs.push_back(cuda::capture(stream, [&] {
      enqueue_next_inputs(r, stream);
      each_launch_to_choice([&](std::size_t program, const GpuLaunchArgs& args) {
        launch(program, args, r, stream);
      });
    }));
  }
  set_early_starts(false);
  greedy_graphs_ = std::move(graphs);  // of all ranks, or none
}

// The first step runs launch by launch, so that an error names its launch.
void GpuForwardStep::enqueue_greedy() {
  if (graphs_wanted_ && warm_) {
    if (greedy_graphs_.empty()) capture_greedy();
    for (int r : world_.local_ranks()) {
      greedy_graphs_[world_.local_index(r)].launch(world_.stream(r));
    }
    return;
  }
  for (int r : world_.local_ranks()) enqueue_next_inputs(r, world_.stream(r));
  each_launch_to_choice(
      [&](std::size_t program, const GpuLaunchArgs& args) { launch(program, args); });
  warm_ = true;
}

void GpuForwardStep::run_greedy(int token, std::int64_t past, std::int64_t count,
                                const Visit& visit) {
  STRETTO_CHECK(plan_.choose && count >= 1 && past + count <= shape_.max_tokens,
                "greedy steps outside the cache");
  set_inputs({&token, 1}, past);
  set_extents({.count = 1, .past = past, .most = 1});
  logits_enqueued_ = false;
  for (int r : world_.local_ranks()) {
    const cuda::DeviceMemory& next = next_inputs_.on[static_cast<std::size_t>(r)];
    world_.stream(r).upload(next.address(), host_inputs_->host(), host_inputs_->bytes());
  }
  std::vector<cuda::Event> chosen;  // in turn
  for (std::int64_t i = 0; i <= kAhead; ++i)
    chosen.emplace_back(world_.device(world_.local_ranks().front()));
  auto event_of = [&](std::int64_t step) -> const cuda::Event& {
    return chosen[static_cast<std::size_t>(step % (kAhead + 1))];
  };
  const auto* history = static_cast<const volatile std::int32_t*>(host_history_->host());
  std::int64_t enqueued = 0;
  bool more = true;
  for (std::int64_t step = 0; step < count && more; ++step) {
    for (; enqueued < count && enqueued <= step + kAhead; ++enqueued) {
      enqueue_greedy();
      world_.stream(world_.local_ranks().front()).record(event_of(enqueued));
    }
    event_of(step).synchronize();
    if (world_.aborted()) break;
    more = visit(history[past + step]);
  }
  finish();
}

// --- what the launches of a step take ---

std::vector<GpuForwardStep::StageTime> GpuForwardStep::time_stages(int rounds) {
  finish();
  set_extents({.count = plan_.bound, .past = 0, .most = plan_.bound});
  head_args_.tensors[head_tensor_] = head_input_;
  head_args_.extents = {plan_.head_rows};
  std::map<std::string, std::size_t> bytes;
  for (const PlanBuffer& b : model_buffers(shape_)) {
    if (is_weight(b.name)) bytes[b.name] = b.bytes();
  }
  std::vector<Call> step;  // as the plan orders them
  std::map<std::size_t, StageTime> stages;
  std::map<std::size_t, std::set<std::string>> names;  // of weights
  auto add = [&](const PlanLaunch& launch, const GpuLaunchArgs& args) {
    step.push_back({launch.program, &args});
    StageTime& stage = stages[launch.program];
    stage.program = executables_[launch.program]->program().name;
    ++stage.launches;
    // Of an embedding a few rows are read.
    if (stage.program == "embedding") return;
    for (const Binding& b : launch.bindings) {
      auto found = bytes.find(b.buffer);
      if (found == bytes.end()) continue;
      stage.weight_bytes += found->second;
      names[launch.program].insert(b.buffer.substr(b.buffer.rfind('.') + 1));
    }
  };
  for (std::size_t i = 0; i < args_.size(); ++i) add(plan_.launches[i], args_[i]);
  add(plan_.head, head_args_);
  if (plan_.choose) add(*plan_.choose, choose_args_);

  auto time_those = [&](const std::function<bool(std::size_t)>& wanted) {
    std::vector<Call> calls;
    std::copy_if(step.begin(), step.end(), std::back_inserter(calls),
                 [&](const Call& call) { return wanted(call.program); });
    return time_calls(calls, rounds);
  };
  for (auto& [program, stage] : stages) {
    for (const std::string& name : names[program]) {
      stage.weights += (stage.weights.empty() ? "" : " ") + name;
    }
    stage.ms = time_those([only = program](std::size_t p) { return p == only; });
  }
  set_early_starts(early_starts_);
  double all = time_those([](std::size_t) { return true; });
  std::vector<StageTime> out;
  for (auto& [program, stage] : stages) {
    // The first launch stays, as in the step: what follows it may start early.
    if (program != step.front().program) {
      stage.of_step_ms =
          all - time_those([left_out = program](std::size_t p) { return p != left_out; });
    }
    out.push_back(stage);
  }
  set_early_starts(false);
  return out;
}

double GpuForwardStep::time_calls(const std::vector<Call>& calls, int rounds) {
  std::vector<cuda::GraphExec> graphs;
  std::vector<std::pair<cuda::Event, cuda::Event>> events;
  for (int r : world_.local_ranks()) {
    graphs.push_back(cuda::capture(world_.stream(r), [&] {
      for (const Call& c : calls) launch(c.program, *c.args, r, world_.stream(r));
    }));
    const cuda::Device& device = world_.device(r);
    events.emplace_back(cuda::Event(device, cuda::Event::Timing::kOn),
                        cuda::Event(device, cuda::Event::Timing::kOn));
  }
  std::vector<double> ms;
  constexpr int kWarmup = 2;
  for (int i = 0; i < rounds + kWarmup; ++i) {
    for (int r : world_.local_ranks()) {
      auto at = static_cast<std::size_t>(r);
      const cuda::Stream& stream = world_.stream(r);
      stream.record(events[at].first);
      graphs[at].launch(stream);
      stream.record(events[at].second);
    }
    finish();
    double slowest = 0;
    for (const auto& [begin, end] : events) {
      slowest = std::max(slowest, cuda::elapsed_ms(begin, end));
    }
    if (i >= kWarmup) ms.push_back(slowest);
  }
  return median(std::move(ms));
}

}  // namespace stretto
