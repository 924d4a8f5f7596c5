// A step plan is to programs what a program is to tiles: buffers, and nodes that launch programs
// over them, in order. It is data, and has readers: text.h, check.h, memory.h, runner.h runs it on
// CPU ranks and on GPUs, predict.h says what it would take there.
//
// Every rank runs the same plan, over buffers of its own. Before a step its caller sets the
// extents and writes the inputs; afterwards the outputs are there to be read. Nodes stand in
// sections, which the caller runs in order, each once or several times (the head of a model once
// for each piece of the rows that are asked for). A node whose first extent is 0 is passed over.
//
// Before: plan_builder.h, with which a model's families (model/transformer) make plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto::step {

// A run-time number of a step, 0 <= value <= bound, the same on all ranks of a group.
struct Extent {
  std::string name;
  std::int64_t bound = 0;
};

// ceil(sum of terms / divisor) * factor, where it is not below 0, else 0.
struct Size {
  struct Term {
    int extent = 0;  // in Plan::extents
    std::int64_t coefficient = 1;
    friend bool operator==(const Term&, const Term&) = default;
  };
  std::vector<Term> terms;  // by extent, ascending, no coefficient is 0
  std::int64_t constant = 0;
  std::int64_t divisor = 1, factor = 1;  // at least 1

  static Size of(std::int64_t constant) { return {.terms = {}, .constant = constant}; }
  static Size of_extent(int extent) { return {.terms = {{extent}}}; }
  friend bool operator==(const Size&, const Size&) = default;
};

enum class BufferKind : std::uint8_t {
  kConstant,  // the caller's, read only: weights
  kState,     // the caller's, kept from step to step: caches; a symmetric one is the step's own
  kInput,     // written by the caller before its section
  kOutput,  // read by the caller after the section that writes it; keeps what it holds till the end
  kLocal,   // nobody's outside the step
};
const char* name(BufferKind kind);

// A buffer of one rank, dense and row-major.
struct Buffer {
  std::string name;
  DType dtype = DType::kF32;
  BufferKind kind = BufferKind::kLocal;
  std::vector<Size> shape;     // storage is that of the extents' bounds
  bool symmetric = false;      // other ranks of the group address it
  bool across_groups = false;  // and if so, those of other groups too
};

struct Binding {
  std::string tensor;  // the program's
  int buffer = 0;
  Size from;  // the tensor begins at this row of the buffer, an entry of its first dimension
};

struct Node {
  std::string name;
  int program = 0;
  std::vector<Binding> bindings;
  std::vector<Size> extents;  // as Program declares them
};

struct Section {
  std::string name;
  std::size_t begin = 0, end = 0;  // in Plan::nodes; sections follow one another
};

struct Plan {
  std::string name;
  int group_size = 1;  // ranks whose rows are the same; programs run on as many,
  int num_ranks = 1;   // or on all ranks, which are groups of consecutive ones
  std::vector<Extent> extents;
  std::vector<Buffer> buffers;
  std::vector<Program> programs;  // at tile level; many nodes share one
  std::vector<Node> nodes;
  std::vector<Section> sections;

  std::vector<std::int64_t> bounds() const;
  int find_buffer(const std::string& name) const;              // -1: none
  int find_extent(const std::string& name) const;              // -1: none
  const Section* find_section(const std::string& name) const;  // null: none
  const Program& program_of(const Node& node) const {
    return programs[static_cast<std::size_t>(node.program)];
  }
};

// `values` are those of Plan::extents.
std::int64_t eval(const Size& size, const std::vector<std::int64_t>& values);
std::vector<std::int64_t> eval(const std::vector<Size>& sizes,
                               const std::vector<std::int64_t>& values);
// Sizes at the bounds.
std::int64_t num_elements(const Plan& plan, const Buffer& buffer);
std::size_t num_bytes(const Plan& plan, const Buffer& buffer);
// What one entry of the buffer's first dimension takes.
std::size_t row_bytes(const Plan& plan, const Buffer& buffer);
// Of a buffer whose sizes have no extents.
std::size_t num_bytes(const Buffer& buffer);

// How a launch of `program` touches what is bound to a tensor: what it reads there was written
// before. A state that the program only stores to is not read.
struct Access {
  bool reads = false, writes = false;
};
std::vector<Access> accesses(const Program& program);  // by tensor

// By program: the inputs that every launch of it finds in constants of the plan.
std::vector<std::set<std::string>> constant_inputs(const Plan& plan);

}  // namespace stretto::step
