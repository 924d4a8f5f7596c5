#include "stretto/step/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/verifier.h"

namespace stretto::step {
namespace {

class Checker {
 public:
  explicit Checker(const Plan& plan) : p_(plan) {}

  void run() {
    check_world();
    check_names();
    for (const Buffer& b : p_.buffers) check_buffer(b);
    for (std::size_t i = 0; i < p_.programs.size(); ++i) check_program(i);
    check_sections();
    for (const Node& node : p_.nodes) {
      node_ = &node;
      check_launch();
      check_bindings();
      check_order();
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    std::string where = node_ != nullptr ? fmt::format("node '{}': ", node_->name) : "";
    throw UserError(fmt::format("step '{}': {}{}", p_.name, where, what));
  }

  void check_world() {
    if (p_.group_size < 1 || p_.num_ranks < 1 || p_.num_ranks > kMaxWorldSize ||
        p_.num_ranks % p_.group_size != 0) {
      fail(fmt::format("{} ranks in groups of {}", p_.num_ranks, p_.group_size));
    }
  }

  template <typename Named>
  void check_names_of(const std::vector<Named>& all, const char* what) {
    std::set<std::string> seen;
    for (const Named& n : all) {
      if (!seen.insert(n.name).second) fail(fmt::format("two {} '{}'", what, n.name));
    }
  }
  void check_names() {
    check_names_of(p_.extents, "extents");
    check_names_of(p_.buffers, "buffers");
    check_names_of(p_.nodes, "nodes");
    check_names_of(p_.sections, "sections");
    for (const Extent& e : p_.extents) {
      if (e.bound < 0 || e.bound > kMaxExtent) {
        fail(fmt::format("extent '{}' has the bound {}", e.name, e.bound));
      }
    }
  }

  // At the bounds: evaluated in wide numbers, since text may hold any.
  std::int64_t largest(const Size& s) {
    __int128 sum = s.constant;
    for (const Size::Term& t : s.terms) {
      if (t.extent < 0 || at(t.extent) >= p_.extents.size()) fail("a size of an unknown extent");
      // What is taken away may be 0.
      if (t.coefficient > 0) sum += __int128{t.coefficient} * p_.extents[at(t.extent)].bound;
    }
    if (s.divisor < 1 || s.factor < 1) fail("a size divided or multiplied by less than 1");
    if (sum <= 0) return 0;
    __int128 value = (sum + s.divisor - 1) / s.divisor * s.factor;
    if (value > kMaxExtent) fail("a size that is too large");
    return static_cast<std::int64_t>(value);
  }

  void check_buffer(const Buffer& b) {
    if (b.shape.empty()) fail(fmt::format("buffer '{}' has no shape", b.name));
    __int128 bytes = size_bytes(b.dtype);
    for (const Size& s : b.shape) {
      bytes *= largest(s);
      if (bytes > kMaxTensorBytes) fail(fmt::format("buffer '{}' is too large", b.name));
    }
    if (b.across_groups && !b.symmetric) {
      fail(fmt::format("buffer '{}' is across groups, but not symmetric", b.name));
    }
  }

  void check_program(std::size_t i) {
    const Program& program = p_.programs[i];
    std::string which = fmt::format("program {} ('{}'): ", i, program.name);
    try {
      verify(program);
    } catch (const UserError& e) {
      fail(which + e.what());
    }
    if (program.level != Level::kTile) fail(which + "is not at tile level");
    if (program.world_size != p_.group_size && program.world_size != p_.num_ranks) {
      fail(fmt::format("{}is for {} ranks, the step has {} in groups of {}", which,
                       program.world_size, p_.num_ranks, p_.group_size));
    }
    accesses_.push_back(accesses(program));
  }

  void check_sections() {
    std::size_t next = 0;
    for (const Section& s : p_.sections) {
      if (s.begin != next || s.end < s.begin || s.end > p_.nodes.size()) {
        fail(fmt::format("section '{}' does not follow the one before", s.name));
      }
      next = s.end;
    }
    if (next != p_.nodes.size()) fail("nodes stand in no section");
  }

  const Program& program() const { return p_.program_of(*node_); }

  void check_launch() {
    if (node_->program < 0 || at(node_->program) >= p_.programs.size()) {
      fail("runs a program that there is not");
    }
    std::vector<std::int64_t> bounds = extent_bounds(program());
    if (node_->extents.size() != bounds.size()) {
      fail(fmt::format("'{}' takes {} extents, not {}", program().name, bounds.size(),
                       node_->extents.size()));
    }
    std::size_t i = 0;
    for (const Var& v : program().vars) {
      if (v.kind != VarKind::kExtent && v.kind != VarKind::kScalar) continue;
      std::int64_t most = largest(node_->extents[i]);
      if (most > bounds[i]) {
        fail(fmt::format("extent '{}' of '{}' may be {}, its bound is {}", v.name, program().name,
                         most, bounds[i]));
      }
      ++i;
    }
  }

  void check_bindings() {
    std::set<std::string> bound;
    std::map<int, bool> written;  // by buffer
    for (const Binding& b : node_->bindings) {
      int t = program().find_tensor(b.tensor);
      if (t < 0 || program().tensors[at(t)].kind == TensorKind::kBuffer) {
        fail(fmt::format("'{}' has no tensor '{}'", program().name, b.tensor));
      }
      if (!bound.insert(b.tensor).second) fail(fmt::format("binds '{}' twice", b.tensor));
      if (b.buffer < 0 || at(b.buffer) >= p_.buffers.size()) {
        fail(fmt::format("binds '{}' to a buffer that there is not", b.tensor));
      }
      check_fit(b, t);
      const Buffer& buffer = p_.buffers[at(b.buffer)];
      bool writes = access(t).writes;
      if (writes && (buffer.kind == BufferKind::kConstant || buffer.kind == BufferKind::kInput)) {
        fail(fmt::format("writes '{}', which is {}", buffer.name,
                         buffer.kind == BufferKind::kInput ? "an input" : "constant"));
      }
      auto [other, is_new] = written.try_emplace(b.buffer, writes);
      if (!is_new && (writes || other->second)) {
        fail(fmt::format("binds '{}' twice and writes it", buffer.name));
      }
    }
    for (const Tensor& t : program().tensors) {
      if (t.kind != TensorKind::kBuffer && !bound.contains(t.name)) {
        fail(fmt::format("tensor '{}' of '{}' is not bound", t.name, program().name));
      }
    }
  }

  void check_fit(const Binding& b, int t) {
    const Tensor& tensor = program().tensors[at(t)];
    const Buffer& buffer = p_.buffers[at(b.buffer)];
    auto which = [&] { return fmt::format("'{}' = '{}': ", b.tensor, buffer.name); };
    if (tensor.dtype != buffer.dtype) {
      fail(which() + fmt::format("{} is bound to {}", stretto::name(tensor.dtype),
                                 stretto::name(buffer.dtype)));
    }
    std::vector<std::int64_t> needs = bound_shape(program(), t);
    std::vector<std::int64_t> has = eval(buffer.shape, p_.bounds());
    std::int64_t elements = stretto::num_elements(needs), of_buffer = num_elements(p_, buffer);
    // Of a buffer with more rows, the first ones.
    bool fits = elements == of_buffer || (needs.front() <= has.front() && needs.front() > 0 &&
                                          elements / needs.front() == of_buffer / has.front());
    if (!fits) fail(which() + fmt::format("{} elements are bound to {}", elements, of_buffer));
    largest(b.from);
    if (b.from != Size{} && (buffer.symmetric || tensor.space == Space::kSymmetric)) {
      fail(which() + "what other ranks address begins with its buffer");
    }
    if (tensor.space != Space::kSymmetric) return;
    if (!buffer.symmetric)
      fail(which() + "other ranks address it, and the buffer is not symmetric");
    bool of_all = program().world_size != p_.group_size;
    if (of_all && !buffer.across_groups) {
      fail(which() + "ranks of other groups address it, and the buffer is not across groups");
    }
  }

  // Which ranks have what nodes wrote to a buffer, in the world of all.
  struct Content {
    std::vector<bool> has;
    bool was_read = false;
  };

  void check_order() {
    for (const Binding& b : node_->bindings) {
      const Buffer& buffer = p_.buffers[at(b.buffer)];
      bool of_step = buffer.kind == BufferKind::kLocal || buffer.kind == BufferKind::kOutput;
      if (!of_step || !access(program().find_tensor(b.tensor)).reads) continue;
      auto found = contents_.find(b.buffer);
      if (found == contents_.end()) {
        fail(fmt::format("reads '{}', which no node before it writes", buffer.name));
      }
      Content& content = found->second;
      auto lacks = std::find(content.has.begin(), content.has.end(), false);
      if (lacks != content.has.end()) {
        fail(
            fmt::format("reads '{}' on every rank, and rank {} does not have it: the output that a "
                        "node before it writes there is given on other ranks",
                        buffer.name, lacks - content.has.begin()));
      }
      content.was_read = true;
    }
    for (const Binding& b : node_->bindings) {
      const int tensor = program().find_tensor(b.tensor);
      if (access(tensor).writes) write(b.buffer, tensor);
    }
  }

  // What has been read since it was written begins anew (memory.h), on all ranks.
  void write(int buffer, int tensor) {
    Content& content = contents_[buffer];
    if (content.was_read || content.has.empty()) content = {std::vector<bool>(at(p_.num_ranks))};
    for (int r = 0; r < p_.num_ranks; ++r) {
      if (is_given(program(), tensor, r % program().world_size)) content.has[at(r)] = true;
    }
  }

  const Access& access(int tensor) const { return accesses_[at(node_->program)][at(tensor)]; }

  const Plan& p_;
  const Node* node_ = nullptr;
  std::vector<std::vector<Access>> accesses_;  // by program
  std::map<int, Content> contents_;            // by buffer
};

}  // namespace

void check(const Plan& plan) { Checker(plan).run(); }

}  // namespace stretto::step
