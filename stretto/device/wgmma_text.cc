#include "stretto/device/wgmma_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace stretto {
namespace {

struct TypeNames {
  const char* element;
  const char* ptx;
  int k;
};

TypeNames names_of(WgmmaType type) {
  switch (type) {
    case WgmmaType::kBF16:
      return {"bf16", "bf16", 16};
    case WgmmaType::kF16:
      return {"f16", "f16", 16};
    case WgmmaType::kE4M3:
      break;
  }
  return {"f8e4m3", "e4m3", 32};
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  return fmt::format("{}", fmt::join(parts, between));
}

// A statement as it is put together: operands are numbered in the order in which they are named,
// accumulators first.
class Statement {
 public:
  explicit Statement(const WgmmaShape& shape) : shape_(shape), names_(names_of(shape.type)) {
    const int columns = shape.n + (shape.sums ? 8 : 0);
    per_block_ = columns / 2;
    for (int block = 0; block < shape.blocks; ++block) {
      for (int group = 0; group < columns / 8; ++group) {  // two of row r, two of row r + 8
        for (int i = 0; i < 4; ++i) {
          outputs_.push_back(
              fmt::format("\"+f\"(acc.x[{}][{}])", 2 * block + i / 2, 2 * group + i % 2));
        }
      }
    }
  }

  // Its place among the operands.
  std::string input(const std::string& constraint, const std::string& value) {
    inputs_.push_back(fmt::format("\"{}\"({})", constraint, value));
    return fmt::format("%{}", outputs_.size() + inputs_.size() - 1);
  }

  // Of columns first .. first + n of a block.
  void multiply(int block, int first, int n, const std::string& a, const std::string& b, bool keeps,
                const std::string& tail) {
    std::vector<std::string> registers;
    for (int i = first / 2; i < (first + n) / 2; ++i) {
      registers.push_back(fmt::format("%{}", block * per_block_ + i));
    }
    instructions_ += fmt::format(
        "        \"wgmma.mma_async.sync.aligned.m64n{}k{}.f32.{}.{} \"\n"
        "        \"{{{}}}, \"\n        \"{}, {}, {}, 1, 1{};\\n\"\n",
        n, names_.k, names_.ptx, names_.ptx, joined(registers, ", "), a, b, keeps ? "1" : "p",
        tail);
  }

  // `keep`: the operand that says whether the first step's instructions add to what is there.
  std::string text(const std::string& keep) const {
    return fmt::format(
        "    asm volatile(\n        \"{{\\n.reg .pred p;\\nsetp.ne.b32 p, {}, 0;\\n\"\n{}"
        "        \"}}\"\n        : {}\n        : {});\n",
        keep, instructions_, joined(outputs_, ", "), joined(inputs_, ", "));
  }

 private:
  const WgmmaShape shape_;
  const TypeNames names_;
  int per_block_ = 0;
  std::string instructions_;
  std::vector<std::string> outputs_, inputs_;
};

// A and B in shared memory.
std::string from_shared(const WgmmaShape& s) {
  Statement statement(s);
  const std::string keep = statement.input("r", "int(keep)");
  std::string tail;
  if (s.type != WgmmaType::kE4M3) {
    tail = ", " + statement.input("n", "int(kTransA)");
    tail += ", " + statement.input("n", "int(kTransB)");
  }
  for (int step = 0; step < s.steps; ++step) {
    const std::string b = statement.input("l", fmt::format("b[{}]", step));
    for (int block = 0; block < s.blocks; ++block) {
      const std::string a = statement.input("l", fmt::format("a[{}]", step * s.blocks + block));
      statement.multiply(block, 0, s.n, a, b, step > 0, tail);
    }
  }
  return "  template <bool kTransA, bool kTransB, class Acc>\n"
         "  STRETTO_DEVICE static void ss(Acc& acc, const u64* a, const u64* b, bool keep) {\n" +
         statement.text(keep) + "  }\n";
}

// The registers of A's 64 x 16 elements, of rows r and r + 8.
std::string registers_of_a(Statement& statement, int block, int step) {
  std::vector<std::string> registers;
  for (int i = 0; i < 4; ++i) {
    registers.push_back(statement.input(
        "r", fmt::format("a.w[{}][from + {}]", 2 * block + i % 2, 2 * step + i / 2)));
  }
  return "{" + joined(registers, ", ") + "}";
}

// A in registers, B in shared memory.
std::string from_registers(const WgmmaShape& s) {
  Statement statement(s);
  const std::string keep = statement.input("r", "int(keep)");
  const std::string tail = ", " + (s.sums ? "1" : statement.input("n", "int(kTransB)"));
  for (int step = 0; step < s.steps; ++step) {
    const bool keeps = step > 0, whole = !s.sums;
    std::string b, ones;
    if (whole || s.first_sums > 0) b = statement.input("l", fmt::format("b[{}]", step));
    if (s.sums) ones = statement.input("l", fmt::format("ones[{}]", step));
    for (int block = 0; block < s.blocks; ++block) {
      const std::string a = registers_of_a(statement, block, step);
      const int first = whole ? s.n : s.first_sums;
      if (first > 0) statement.multiply(block, 0, first, a, b, keeps, tail);
      if (s.sums) statement.multiply(block, first, s.n - first + 8, a, ones, keeps, tail);
    }
  }
  return fmt::format(
      "  template <{}class Acc, class A>\n"
      "  STRETTO_DEVICE static void rs(Acc& acc, const A& a, int from, const u64* b{},\n"
      "                                bool keep) {{\n{}  }}\n",
      s.sums ? "" : "bool kTransB, ", s.sums ? ", const u64* ones" : "", statement.text(keep));
}

}  // namespace

std::string wgmma_text(const WgmmaShape& s) {
  std::string functions;
  if (!s.sums) functions += from_shared(s);
  if (s.type != WgmmaType::kE4M3) functions += from_registers(s);
  return fmt::format("template <>\nstruct Wgmma{}<{}, {}, {}, {}> {{\n{}}};\n",
                     s.sums ? "WithSums" : "", names_of(s.type).element, s.n, s.blocks, s.steps,
                     functions);
}

}  // namespace stretto
