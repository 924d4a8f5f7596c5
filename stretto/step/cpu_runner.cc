#include "stretto/step/cpu_runner.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"

namespace stretto::step {

void FreeBytes::operator()(std::byte* p) const { std::free(p); }

// Aligned as places are.
AlignedBytes CpuRunner::zeros(std::size_t bytes) {
  bytes = (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  if (bytes == 0) bytes = kPlaceAlignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kPlaceAlignment, bytes));
  if (p == nullptr) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return AlignedBytes(p);
}

CpuRunner::CpuRunner(const Worlds& worlds, Plan plan,
                     const std::map<std::string, std::byte*>& given,
                     const CpuRunnerOptions& options)
    : Runner(std::move(plan), options.sharing, options.poison),
      worlds_(worlds),
      arena_(options.arena) {
  load_programs(options.progress);
  allocate(given);
  for (const Node& node : this->plan().nodes) nodes_.push_back(prepare(node));
}

CpuRunner::~CpuRunner() {
  nodes_.clear();
  programs_.clear();
  for (Symmetric& s : symmetric_) s.world.release(*s.buffer);
}

void CpuRunner::load_programs(Progress* progress) {
  for (const Program& program : plan().programs) {
    if (progress != nullptr) {
      progress->begin(fmt::format("proving {}, operator {} of {}", program.name,
                                  programs_.size() + 1, plan().programs.size()));
    }
    Rank& world = program.world_size == plan().group_size ? worlds_.group : worlds_.all;
    programs_.push_back(load(prove(lower(program)), world));
  }
}

void CpuRunner::allocate(const std::map<std::string, std::byte*>& given) {
  if (arena_ == nullptr || arena_->bytes < memory().arena_bytes) {
    arena_ = std::make_shared<CpuArena>();
    arena_->data = zeros(memory().arena_bytes);
    arena_->bytes = memory().arena_bytes;
  }
  std::map<int, std::size_t> offsets;
  for (const Place& p : memory().places) offsets[p.buffer] = p.offset;
  for (std::size_t i = 0; i < plan().buffers.size(); ++i) {
    const Buffer& b = plan().buffers[i];
    const auto place = offsets.find(static_cast<int>(i));
    if (place != offsets.end()) {
      std::byte* data = arena_->data.get() + place->second;
      buffers_.push_back({.data = data, .symmetric = b.symmetric ? alone(b, data) : nullptr});
    } else if (b.symmetric) {
      buffers_.push_back(allocate_symmetric(b));
    } else if (b.kind == BufferKind::kConstant || b.kind == BufferKind::kState) {
      auto found = given.find(b.name);
      if (found == given.end()) {
        throw UserError(fmt::format("step '{}': nobody gives '{}'", plan().name, b.name));
      }
      buffers_.push_back({.data = found->second});
    } else {
      inputs_.push_back(zeros(num_bytes(plan(), b)));
      buffers_.push_back({.data = inputs_.back().get()});
    }
  }
}

// Of the only rank that addresses it.
const SymmetricBuffer* CpuRunner::alone(const Buffer& b, std::byte* data) {
  alone_.push_back(std::make_unique<SymmetricBuffer>(SymmetricBuffer{
      .name = b.name, .dtype = b.dtype, .bytes = num_bytes(plan(), b), .at = {data}}));
  return alone_.back().get();
}

TensorArg CpuRunner::allocate_symmetric(const Buffer& b) {
  Rank& world = b.across_groups ? worlds_.all : worlds_.group;
  symmetric_.push_back(
      {world, std::make_unique<SymmetricBuffer>(world.allocate(
                  b.name, b.dtype, static_cast<std::size_t>(num_elements(plan(), b))))});
  SymmetricBuffer& s = *symmetric_.back().buffer;
  return {.data = s.at[at(world.index())], .symmetric = &s};
}

CpuRunner::ReadyNode CpuRunner::prepare(const Node& node) {
  ReadyNode ready{
      .program = programs_[at(node.program)].get(), .args = {}, .moving = {}, .launch = {}};
  const Program& program = ready.program->program();
  ready.args.tensors.resize(program.tensors.size());
  for (const Binding& b : node.bindings) {
    std::size_t t = at(program.find_tensor(b.tensor));
    const TensorArg& buffer = buffers_[at(b.buffer)];
    ready.args.tensors[t] = buffer;
    if (b.from == Size{}) continue;
    ready.moving.push_back({.tensor = t,
                            .data = static_cast<std::byte*>(buffer.data),
                            .row_bytes = row_bytes(plan(), plan().buffers[at(b.buffer)]),
                            .from = b.from});
  }
  ready.launch = ready.program->prepare(ready.args);
  return ready;
}

std::byte* CpuRunner::data(const std::string& buffer) const {
  return static_cast<std::byte*>(buffers_[at(index_of(buffer))].data);
}

void CpuRunner::copy_rows(const std::string& from, std::span<const std::int64_t> rows,
                          const std::string& to) {
  const std::size_t bytes = row_bytes(plan(), plan().buffers[at(index_of(from))]);
  const std::byte* source = data(from);
  std::byte* target = data(to);
  for (std::int64_t row : rows) {
    std::memcpy(target, source + at(row) * bytes, bytes);
    target += bytes;
  }
}

void CpuRunner::run_section(const Section& section, const std::vector<std::int64_t>& values) {
  for (std::size_t i = section.begin; i < section.end; ++i) {
    for (const Range& r : unneeded(i))
      std::memset(arena_->data.get() + r.offset, kPoisonByte, r.bytes);
    ReadyNode& node = nodes_[i];
    const std::span<const std::int64_t> extents = extents_of(plan().nodes[i], values);
    // The same on every rank that runs it.
    if (is_passed_over(extents)) continue;
    for (const ReadyNode::Moving& m : node.moving) {
      node.args.tensors[m.tensor].data = m.data + at(eval(m.from, values)) * m.row_bytes;
    }
    if (!node.moving.empty()) node.launch = node.program->prepare(node.args);
    node.launch->run(extents);
  }
}

}  // namespace stretto::step
