#include "stretto/step/cpu_step.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/launch/executable.h"
#include "stretto/step/check.h"

namespace stretto::step {
namespace {

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte[], Free>;

// Zeros, aligned as places are.
Bytes zeros(std::size_t bytes) {
  bytes = (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  if (bytes == 0) bytes = kPlaceAlignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kPlaceAlignment, bytes));
  if (p == nullptr) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return Bytes(p);
}

// A node made ready: what changes from step to step are its extents and where `moving` begins.
struct ReadyNode {
  struct Moving {
    std::size_t tensor = 0;
    std::byte* data = nullptr;
    std::size_t row_bytes = 0;
    Size from;
  };
  Executable* program = nullptr;
  Args args;
  std::vector<Moving> moving;
  std::shared_ptr<Launch> launch;
};

}  // namespace

class CpuStep::State {
 public:
  State(const Worlds& worlds, Plan plan, const std::map<std::string, std::byte*>& given,
        const CpuStepOptions& options)
      : worlds_(worlds), plan_(std::move(plan)), options_(options) {
    check(plan_);
    memory_ = assign(plan_, options.sharing);
    for (const Program& program : plan_.programs) {
      if (options.progress != nullptr) {
        options.progress->begin(fmt::format("proving {}, operator {} of {}", program.name,
                                            programs_.size() + 1, plan_.programs.size()));
      }
      Rank& world = program.world_size == plan_.group_size ? worlds_.group : worlds_.all;
      programs_.push_back(load(prove(lower(program)), world));
    }
    allocate(given);
    for (const Node& node : plan_.nodes) nodes_.push_back(prepare(node));
    if (options.poison) lives_ = lives(plan_);
  }
  ~State() {
    nodes_.clear();
    programs_.clear();
    for (Symmetric& s : symmetric_) s.world.release(*s.buffer);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const Plan& plan() const { return plan_; }
  const Memory& memory() const { return memory_; }

  std::byte* data(const std::string& name) const {
    int b = plan_.find_buffer(name);
    STRETTO_CHECK(b >= 0, "a step without a buffer " + name);
    return static_cast<std::byte*>(buffers_[at(b)].data);
  }

  void run(const std::string& name, const std::vector<std::int64_t>& values, const After& after) {
    const Section* section = plan_.find_section(name);
    STRETTO_CHECK(section != nullptr, "a step without a section " + name);
    check_values(values);
    for (std::size_t i = section->begin; i < section->end; ++i) {
      if (options_.poison) poison_before(i, *section);
      ReadyNode& node = nodes_[i];
      const std::vector<std::int64_t> extents = eval(plan_.nodes[i].extents, values);
      // The same on every rank that runs it.
      if (!extents.empty() && extents.front() == 0) continue;
      for (const ReadyNode::Moving& m : node.moving) {
        node.args.tensors[m.tensor].data =
            m.data + static_cast<std::size_t>(eval(m.from, values)) * m.row_bytes;
      }
      if (!node.moving.empty()) node.launch = node.program->prepare(node.args);
      node.launch->run(extents);
      if (after) after(i);
    }
  }

 private:
  struct Symmetric {
    Rank& world;
    std::unique_ptr<SymmetricBuffer> buffer;
  };

  void check_values(const std::vector<std::int64_t>& values) const {
    STRETTO_CHECK(values.size() == plan_.extents.size(), "a step with too few extents");
    for (std::size_t i = 0; i < values.size(); ++i) {
      STRETTO_CHECK(values[i] >= 0 && values[i] <= plan_.extents[i].bound,
                    fmt::format("a step with {} = {}, its bound is {}", plan_.extents[i].name,
                                values[i], plan_.extents[i].bound));
    }
  }

  void allocate(const std::map<std::string, std::byte*>& given) {
    arena_ = zeros(memory_.arena_bytes);
    std::map<int, std::size_t> offsets;
    for (const Place& p : memory_.places) offsets[p.buffer] = p.offset;
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const Buffer& b = plan_.buffers[i];
      const bool is_given = b.kind == BufferKind::kConstant || b.kind == BufferKind::kState;
      if (is_given && !b.symmetric) {
        auto found = given.find(b.name);
        if (found == given.end()) {
          throw UserError(fmt::format("step '{}': nobody gives '{}'", plan_.name, b.name));
        }
        buffers_.push_back({.data = found->second});
      } else if (b.symmetric) {
        buffers_.push_back(allocate_symmetric(b));
      } else if (b.kind == BufferKind::kInput) {
        inputs_.push_back(zeros(num_bytes(plan_, b)));
        buffers_.push_back({.data = inputs_.back().get()});
      } else {
        buffers_.push_back({.data = arena_.get() + offsets.at(static_cast<int>(i))});
      }
    }
  }

  TensorArg allocate_symmetric(const Buffer& b) {
    Rank& world = b.across_groups ? worlds_.all : worlds_.group;
    symmetric_.push_back(
        {world, std::make_unique<SymmetricBuffer>(world.allocate(
                    b.name, b.dtype, static_cast<std::size_t>(num_elements(plan_, b))))});
    SymmetricBuffer& s = *symmetric_.back().buffer;
    return {.data = s.at[at(world.index())], .symmetric = &s};
  }

  ReadyNode prepare(const Node& node) {
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
                              .row_bytes = row_bytes(plan_, plan_.buffers[at(b.buffer)]),
                              .from = b.from});
    }
    ready.launch = ready.program->prepare(ready.args);
    return ready;
  }

  // Where no life has node i, nothing needs what is there: in a section that runs for the first
  // time, and only where no other buffer in the same place lives.
  void poison_before(std::size_t i, const Section& section) {
    std::vector<bool> needed(memory_.arena_bytes / kPlaceAlignment, false);
    for (const Place& p : memory_.places) {
      for (const Life& life : lives_) {
        // What begins here has been written by nobody yet.
        if (life.buffer != p.buffer || life.first >= i || life.last < i) continue;
        if (life.first >= section.end) continue;
        std::fill_n(needed.begin() + static_cast<std::ptrdiff_t>(p.offset / kPlaceAlignment),
                    p.bytes / kPlaceAlignment, true);
      }
    }
    for (std::size_t block = 0; block < needed.size(); ++block) {
      if (!needed[block]) {
        std::memset(arena_.get() + block * kPlaceAlignment, 0xFF, kPlaceAlignment);
      }
    }
  }

  Worlds worlds_;
  Plan plan_;
  CpuStepOptions options_;
  Memory memory_;
  std::vector<std::unique_ptr<Executable>> programs_;
  std::vector<TensorArg> buffers_;  // by buffer
  Bytes arena_;
  std::vector<Bytes> inputs_;
  std::vector<Symmetric> symmetric_;
  std::vector<ReadyNode> nodes_;
  std::vector<Life> lives_;  // where they are poisoned
};

CpuStep::CpuStep(const Worlds& worlds, Plan plan, const std::map<std::string, std::byte*>& given,
                 const CpuStepOptions& options)
    : state_(std::make_unique<State>(worlds, std::move(plan), given, options)) {}
CpuStep::~CpuStep() = default;

const Plan& CpuStep::plan() const { return state_->plan(); }
const Memory& CpuStep::memory() const { return state_->memory(); }
std::byte* CpuStep::data(const std::string& buffer) const { return state_->data(buffer); }
void CpuStep::run(const std::string& section, const std::vector<std::int64_t>& values,
                  const After& after) {
  state_->run(section, values, after);
}

}  // namespace stretto::step
