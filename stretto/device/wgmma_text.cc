#include "stretto/device/wgmma_text.h"

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

// "{%0, %1, ...}" of the accumulators, in the order of the instruction.
std::string registers(int n) {
  std::string out = "{";
  for (int i = 0; i < n / 2; ++i) out += (i == 0 ? "%" : ", %") + std::to_string(i);
  return out + "}";
}

// Per 8 columns: two of row r, two of row r + 8.
std::string operands(int n) {
  std::string out;
  for (int group = 0; group < n / 8; ++group) {
    std::string a = std::to_string(2 * group), b = std::to_string(2 * group + 1);
    out += group == 0 ? "" : ", ";
    out += "\"+f\"(lo[" + a + "]), \"+f\"(lo[" + b + "]), \"+f\"(hi[" + a + "]), \"+f\"(hi[" + b +
           "])";
    out += "\n        ";
  }
  return out;
}

std::string placeholder(int index) { return "%" + std::to_string(index); }

// The statement between the function's braces. `a`: what stands for A; `inputs`: constraints.
std::string instruction(const TypeNames& t, int n, const std::string& a, int keep,
                        const std::string& tail, const std::string& inputs) {
  std::string shape = "m64n" + std::to_string(n) + "k" + std::to_string(t.k);
  std::string out = "    asm volatile(\n        \"{\\n.reg .pred p;\\nsetp.ne.b32 p, ";
  out += placeholder(keep) + ", 0;\\n\"\n        \"wgmma.mma_async.sync.aligned." + shape + ".f32.";
  out += std::string(t.ptx) + "." + t.ptx + " \"\n        \"" + registers(n) + ", \"\n        \"";
  out += a + ", p, 1, 1" + tail + ";\\n}\"\n        : " + operands(n) + ": " + inputs + ");\n";
  return out;
}

}  // namespace

std::string wgmma_text(WgmmaType type, int n) {
  TypeNames t = names_of(type);
  bool halves = t.k == 16;
  int first = n / 2;
  std::string out =
      "template <>\nstruct Wgmma<" + std::string(t.element) + ", " + std::to_string(n) + "> {\n";
  out += "  template <bool kTransA, bool kTransB>\n";
  out += "  STRETTO_DEVICE static void ss(float* lo, float* hi, u64 a, u64 b, bool keep) {\n";
  std::string inputs = "\"l\"(a), \"l\"(b), \"r\"(int(keep))";
  std::string tail;
  if (halves) {
    inputs += ", \"n\"(int(kTransA)), \"n\"(int(kTransB))";
    tail = ", " + placeholder(first + 3) + ", " + placeholder(first + 4);
  }
  out += instruction(t, n, placeholder(first) + ", " + placeholder(first + 1), first + 2, tail,
                     inputs);
  out += "  }\n";
  if (halves) {
    out += "  template <bool kTransB>\n";
    out +=
        "  STRETTO_DEVICE static void rs(float* lo, float* hi, u32 a0, u32 a1, u32 a2, u32 a3,\n";
    out += "                                u64 b, bool keep) {\n";
    std::string a = "{" + placeholder(first) + ", " + placeholder(first + 1) + ", " +
                    placeholder(first + 2) + ", " + placeholder(first + 3) + "}, " +
                    placeholder(first + 4);
    out += instruction(t, n, a, first + 5, ", " + placeholder(first + 6),
                       "\"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b), \"r\"(int(keep)), "
                       "\"n\"(int(kTransB))");
    out += "  }\n";
  }
  return out + "};\n";
}

}  // namespace stretto
