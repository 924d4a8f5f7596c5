#include "stretto/step/gpu_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/step/gpu_kernels.h"

namespace stretto::step {

GpuRunner::GpuRunner(const GpuWorlds& worlds, Plan plan, const GpuBuffers& given,
                     const GpuRunnerOptions& options)
    : Runner(std::move(plan), options.sharing, options.poison),
      world_(worlds.all),
      group_(worlds.group),
      early_starts_(options.early_starts),
      poisons_(options.poison),
      arena_memory_(options.arena),
      graphs_(this->plan().sections.size()) {
  STRETTO_CHECK(world_.size() == this->plan().num_ranks, "a step for another number of GPUs");
  for (int r : world_.local_ranks()) uploaded_.emplace_back(world_.device(r));
  load_programs(options);
  place_inputs(options.copied);
  allocate(given);
  for (const Node& node : this->plan().nodes) nodes_.push_back(prepare(node));
}

// Memory and code may go only once nothing runs that uses them.
GpuRunner::~GpuRunner() {
  try {
    world_.synchronize();
  } catch (const Error&) {
    // Whoever enqueued the work that failed was told, or will be at the next call.
  }
}

void GpuRunner::load_programs(const GpuRunnerOptions& options) {
  // Loading code and allocating may wait for what runs, so nothing may run that waits for us.
  world_.synchronize();
  std::vector<ProveOptions> proofs = options.proofs;
  if (proofs.empty()) proofs.resize(plan().programs.size(), {.gpu = world_.target()});
  for (Kernel& k : build_kernels(plan(), proofs, options.progress)) {
    GpuWorld& world = k.program.program().world_size == plan().group_size ? group_ : world_;
    executables_.push_back(load(k.program, world, std::move(k.code)));
  }
}

// With the first section that reads them.
void GpuRunner::place_inputs(const std::set<std::string>& copied) {
  for (const Section& section : plan().sections) {
    const std::size_t begin = input_bytes_;
    for (std::size_t i = section.begin; i < section.end; ++i) {
      for (const Binding& b : plan().nodes[i].bindings) {
        const Buffer& buffer = plan().buffers[at(b.buffer)];
        if (buffer.kind != BufferKind::kInput || copied.contains(buffer.name)) continue;
        if (!input_at_.try_emplace(b.buffer, input_bytes_).second) continue;
        input_bytes_ += ceil_div(num_bytes(plan(), buffer), kPlaceAlignment) * kPlaceAlignment;
      }
    }
    inputs_of_.push_back({begin, input_bytes_ - begin});
  }
}

void GpuRunner::allocate(const GpuBuffers& given) {
  const cuda::Device& first = world_.device(world_.local_ranks().front());
  const std::size_t host_bytes = std::max<std::size_t>(input_bytes_, kPlaceAlignment);
  inputs_ = world_.allocate(host_bytes);
  host_inputs_ = std::make_unique<cuda::HostMappedMemory>(first, host_bytes);
  std::fill_n(static_cast<std::byte*>(host_inputs_->host()), host_bytes, std::byte{0});
  if (!arena_memory_ || arena_memory_->on.front().bytes() < memory().arena_bytes) {
    arena_memory_ =
        std::make_shared<const SymmetricGpuMemory>(allocate_zeros(memory().arena_bytes));
  }
  arena_ = arena_memory_->addresses();
  buffers_.resize(plan().buffers.size());
  auto place = [](std::vector<CUdeviceptr>& on, std::vector<CUdeviceptr> base, std::size_t offset) {
    on = std::move(base);
    for (CUdeviceptr& a : on) a += offset;
  };
  for (const Place& p : memory().places) place(buffers_[at(p.buffer)], arena_, p.offset);
  for (auto [buffer, offset] : input_at_) place(buffers_[at(buffer)], inputs_.addresses(), offset);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& b = plan().buffers[i];
    const std::size_t bytes = num_bytes(plan(), b);
    const bool is_given = b.kind == BufferKind::kConstant || b.kind == BufferKind::kState;
    if (is_given && !b.symmetric) {
      auto found = given.find(b.name);
      if (found == given.end()) {
        throw UserError(fmt::format("step '{}': nobody gives '{}'", plan().name, b.name));
      }
      buffers_[i] = found->second;
    } else if (buffers_[i].empty()) {  // symmetric, or an input that the host does not write
      memory_.push_back(allocate_zeros(bytes));
      buffers_[i] = memory_.back().addresses();
    }
    if (b.kind == BufferKind::kOutput) {
      host_outputs_[static_cast<int>(i)] = std::make_unique<cuda::HostMappedMemory>(first, bytes);
    }
  }
  world_.meet();
}

SymmetricGpuMemory GpuRunner::allocate_zeros(std::size_t bytes) const {
  SymmetricGpuMemory out = world_.allocate(std::max(bytes, kPlaceAlignment));
  for (int r : world_.local_ranks()) {
    const cuda::DeviceMemory& m = out.on[at(r)];
    world_.stream(r).fill_bytes(m.address(), 0, m.bytes());
  }
  return out;
}

std::vector<CUdeviceptr> GpuRunner::addresses_for(const ReadyNode& node,
                                                  const std::vector<CUdeviceptr>& of_all) const {
  if (!node.of_group) return of_all;
  const int size = plan().group_size;
  const auto first = of_all.begin() + world_.local_ranks().front() / size * size;
  return {first, first + size};
}

GpuRunner::ReadyNode GpuRunner::prepare(const Node& node) const {
  const Program& program = plan().program_of(node);
  ReadyNode ready{.program = executables_[at(node.program)].get(),
                  .of_group = program.world_size != plan().num_ranks,
                  .args = {},
                  .moving = {},
                  .late = {},
                  .early = {}};
  ready.args.tensors.resize(program.tensors.size());
  for (const Binding& b : node.bindings) {
    const std::size_t t = at(program.find_tensor(b.tensor));
    ready.args.tensors[t].on = addresses_for(ready, buffers_[at(b.buffer)]);
    if (b.from == Size{}) continue;
    ready.moving.push_back({.tensor = t,
                            .begin = ready.args.tensors[t].on,
                            .row_bytes = row_bytes(plan(), plan().buffers[at(b.buffer)]),
                            .from = b.from});
  }
  return ready;
}

void GpuRunner::move(ReadyNode& node, const std::vector<std::int64_t>& values) const {
  if (node.moving.empty()) return;
  for (const ReadyNode::Moving& m : node.moving) {
    std::vector<CUdeviceptr>& on = node.args.tensors[m.tensor].on;
    for (std::size_t r = 0; r < on.size(); ++r) {
      on[r] = m.begin[r] + at(eval(m.from, values)) * m.row_bytes;
    }
  }
  node.early = node.late = nullptr;
}

// Encoded once for a place; the program finds again what it made for those of a node that moves.
Launch& GpuRunner::prepared(ReadyNode& node, bool early) {
  std::shared_ptr<Launch>& kept = early ? node.early : node.late;
  if (!kept) {
    node.args.starts_early = early;
    kept = node.program->prepare(node.args);
  }
  return *kept;
}

void GpuRunner::launch(ReadyNode& node, bool early, std::span<const std::int64_t> extents,
                       int rank) {
  const int own = node.of_group ? rank % plan().group_size : rank;
  prepared(node, early).run(extents, own, world_.stream(rank));
}

void GpuRunner::launch(ReadyNode& node, std::span<const std::int64_t> extents) {
  if (!node.of_group) return prepared(node, false).run(extents);
  if (group_.aborted()) group_.throw_fault();
  for (int r : world_.local_ranks()) launch(node, false, extents, r);
}

std::byte* GpuRunner::input(const std::string& buffer) {
  auto found = input_at_.find(index_of(buffer));
  STRETTO_CHECK(found != input_at_.end(), "the host does not write " + buffer);
  if (std::exchange(uploads_, false)) {
    for (const cuda::Event& e : uploaded_) wait_for(e);
  }
  return static_cast<std::byte*>(host_inputs_->host()) + found->second;
}

void GpuRunner::enqueue_inputs(const Section& section, int rank) {
  const Range& range = inputs_of_[index_of_section(section)];
  if (range.bytes == 0) return;
  world_.stream(rank).upload(inputs_.on[at(rank)].address() + range.offset,
                             static_cast<const std::byte*>(host_inputs_->host()) + range.offset,
                             range.bytes);
  world_.stream(rank).record(uploaded_[world_.local_index(rank)]);
  uploads_ = true;
}

void GpuRunner::run_section(const Section& section, const std::vector<std::int64_t>& values) {
  for (int r : world_.local_ranks()) enqueue_inputs(section, r);
  const auto& captured = graphs_[index_of_section(section)];
  if (auto graphs = captured.find(values); graphs != captured.end()) {
    for (int r : world_.local_ranks()) {
      graphs->second[world_.local_index(r)].launch(world_.stream(r));
    }
    return;
  }
  // Launch by launch on all ranks: a rank far ahead of the others would fill its queue.
  for (std::size_t i = section.begin; i < section.end; ++i) {
    for (const Range& range : unneeded(i)) {
      for (int r : world_.local_ranks()) {
        world_.stream(r).fill_bytes(arena_[at(r)] + range.offset, kPoisonByte, range.bytes);
      }
    }
    const std::span<const std::int64_t> extents = extents_of(plan().nodes[i], values);
    if (is_passed_over(extents)) continue;
    move(nodes_[i], values);
    launch(nodes_[i], extents);
  }
}

std::vector<std::size_t> GpuRunner::nodes_of(const std::string& name,
                                             const std::vector<std::int64_t>& values) {
  const Section* section = plan().find_section(name);
  STRETTO_CHECK(section != nullptr, "a step without a section " + name);
  std::vector<std::size_t> out;
  for (std::size_t i = section->begin; i < section->end; ++i) {
    if (!is_passed_over(extents_of(plan().nodes[i], values))) out.push_back(i);
  }
  return out;
}

void GpuRunner::capture(const std::string& name, const std::vector<std::int64_t>& values) {
  STRETTO_CHECK(!poisons_, "poisoned launches are not captured");
  const Section* section = plan().find_section(name);
  STRETTO_CHECK(section != nullptr, "a step without a section " + name);
  graphs_[index_of_section(*section)][values] = capture_graphs(*section, values);
}

// Where another program's launches are left out, the first one of the section is late all the same.
GpuRunner::Graphs GpuRunner::capture_graphs(const Section& section,
                                            const std::vector<std::int64_t>& values,
                                            std::optional<int> program) {
  const std::vector<std::size_t> nodes = nodes_of(section.name, values);
  for (std::size_t i : nodes) move(nodes_[i], values);
  Graphs graphs;
  for (int r : world_.local_ranks()) {
    graphs.push_back(cuda::capture(world_.stream(r), [&] {
      for (std::size_t i : nodes) {
        if (program && plan().nodes[i].program != *program) continue;
        // The first follows what comes before the graph.
        const bool early = early_starts_ && i != nodes.front();
        launch(nodes_[i], early, extents_of(plan().nodes[i], values), r);
      }
    }));
  }
  return graphs;
}

// As few copies as rows that follow one another allow.
void GpuRunner::copy_rows(const std::string& from, std::span<const std::int64_t> rows,
                          const std::string& to) {
  const std::size_t bytes = row_bytes(plan(), plan().buffers[at(index_of(from))]);
  auto run_end = [&](std::size_t i) {
    do ++i;
    while (i < rows.size() && rows[i] == rows[i - 1] + 1);
    return i;
  };
  for (int r : world_.local_ranks()) {
    for (std::size_t i = 0; i < rows.size(); i = run_end(i)) {
      world_.stream(r).copy(addresses(to)[at(r)] + i * bytes,
                            addresses(from)[at(r)] + at(rows[i]) * bytes, (run_end(i) - i) * bytes);
    }
  }
}

const std::byte* GpuRunner::read(const std::string& output, std::size_t bytes) {
  auto host = host_outputs_.find(index_of(output));
  STRETTO_CHECK(host != host_outputs_.end(), output + " is no output");
  const int first = world_.local_ranks().front();
  world_.stream(first).download(host->second->host(), addresses(output)[at(first)], bytes);
  wait();
  return static_cast<const std::byte*>(host->second->host());
}

void GpuRunner::wait() {
  world_.synchronize();
  throw_if_aborted();
}

// Who waits in a world of processes hears of one that has died.
void GpuRunner::wait_for(const cuda::Event& event) {
  if (world_.local_ranks().size() < static_cast<std::size_t>(world_.size())) return wait();
  event.synchronize();
  throw_if_aborted();
}

void GpuRunner::throw_if_aborted() const {
  for (const GpuWorld* world : {&group_, &world_}) {
    if (world->aborted()) world->throw_fault();
  }
}

std::vector<GpuRunner::ProgramTime> GpuRunner::time_programs(
    const std::string& name, const std::vector<std::int64_t>& values, int times) {
  using Clock = std::chrono::steady_clock;
  const Section* section = plan().find_section(name);
  STRETTO_CHECK(section != nullptr, "a step without a section " + name);
  const std::vector<std::size_t> all = nodes_of(name, values);
  std::vector<ProgramTime> out;
  for (std::size_t p = 0; p < executables_.size(); ++p) {
    const auto program = static_cast<int>(p);
    const auto launches = static_cast<int>(std::ranges::count_if(
        all, [&](std::size_t node) { return plan().nodes[node].program == program; }));
    if (launches == 0) continue;
    const Graphs graphs = capture_graphs(*section, values, program);
    auto enqueue = [&] {
      for (int r : world_.local_ranks()) graphs[world_.local_index(r)].launch(world_.stream(r));
    };
    enqueue();
    world_.synchronize();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < times; ++i) enqueue();
    wait();
    const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
    out.push_back({.name = executables_[p]->program().name,
                   .launches = launches,
                   .ms = taken.count() / times});
  }
  return out;
}

}  // namespace stretto::step
