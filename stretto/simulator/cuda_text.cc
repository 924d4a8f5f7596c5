#include "stretto/simulator/cuda_text.h"

#include <fmt/format.h>

#include <cctype>
#include <regex>
#include <stdexcept>

namespace stretto::simulator {
namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string trimmed(const std::string& s) {
  std::size_t first = s.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return s.substr(first, s.find_last_not_of(" \t\n") - first + 1);
}

[[noreturn]] void refuse(const std::string& what, const std::string& text) {
  throw std::invalid_argument(fmt::format("{}: {}", what, text.substr(0, 200)));
}

// Parts between `separator`s that stand in no bracket and no string.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') parts.back() += text[i++];
      in_string = c != '"';
      parts.back() += text[i];
      continue;
    }
    in_string = c == '"';
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string with_underscores(const std::string& mnemonic) {
  std::string out = mnemonic;
  for (char& c : out) {
    if (c == '.' || c == ':') c = '_';
  }
  return out;
}

std::string operand_text(const std::string& text);

std::string operands_text(const std::string& text) {
  std::string out;
  for (const std::string& part : split(text, ',')) {
    if (trimmed(part).empty()) continue;
    out += (out.empty() ? "" : ", ") + operand_text(trimmed(part));
  }
  return out;
}

std::string operand_text(const std::string& text) {
  if (text == "_") return "ptx::SimSink{}";
  if (text.front() == '[') return operands_text(text.substr(1, text.size() - 2));
  if (text.front() == '{') {
    return "ptx::sim_list(" + operands_text(text.substr(1, text.size() - 2)) + ")";
  }
  if (text.starts_with("%%")) return "ptx::sim_" + text.substr(2) + "()";
  if (text.front() == '%') return "o" + text.substr(1);
  if (std::size_t bar = text.find('|'); bar != std::string::npos) {  // two results
    return operand_text(text.substr(0, bar)) + ", " + operand_text(text.substr(bar + 1));
  }
  return text;
}

// "m64n256k16.f32.bf16.bf16"
std::string product_name(const std::string& mnemonic) {
  static const std::regex kShape(R"(m64n(\d+)k(\d+)\.f32\.(bf16|f16|e4m3)\.\3$)");
  std::smatch shape;
  if (!std::regex_search(mnemonic, shape, kShape)) refuse("no such product", mnemonic);
  std::string factor = shape[3] == "bf16" ? "kBF16" : shape[3] == "f16" ? "kF16" : "kE4M3";
  return fmt::format("sim_wgmma<{}, {}, sim::Factor::{}>", shape[1].str(), shape[2].str(), factor);
}

std::string instruction_text(const std::string& text) {
  if (text.front() == '@') {
    std::size_t space = text.find(' ');
    return fmt::format("if ({}) {}", text.substr(1, space - 1),
                       instruction_text(trimmed(text.substr(space))));
  }
  std::size_t end = text.find(' ');
  std::string mnemonic = text.substr(0, end);
  std::string rest = end == std::string::npos ? "" : trimmed(text.substr(end));
  if (mnemonic == ".reg") {
    std::size_t space = rest.find(' ');
    return (rest.substr(0, space) == ".pred" ? "bool" : "uint32_t") + rest.substr(space) + "{};";
  }
  std::string name =
      mnemonic.starts_with("wgmma.mma_async") ? product_name(mnemonic) : with_underscores(mnemonic);
  return fmt::format("ptx::{}({});", name, operands_text(rest));
}

// Past the bracket that closes the one at `open`.
std::size_t past_closing(const std::string& text, std::size_t open) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = open; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '(') ++depth;
    if (c == ')' && --depth == 0) return i + 1;
  }
  refuse("no closing bracket", text.substr(open));
}

// String literals that follow each other, as the compiler joins them.
std::string joined(const std::string& literals) {
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < literals.size(); ++i) {
    char c = literals[i];
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string && c == '\\') {
      out += literals[++i] == 'n' ? '\n' : literals[i];
    } else if (in_string) {
      out += c;
    }
  }
  return out;
}

// "::" between operands is two colons here.
std::vector<std::string> sections(const std::string& inside) {
  std::vector<std::string> out;
  for (const std::string& part : split(inside, ':')) out.push_back(part);
  out.resize(4);
  return out;
}

// `inside`: what stands between the brackets of asm (...).
std::string statement_text(const std::string& inside) {
  std::vector<std::string> parts = sections(inside);
  std::string ptx = trimmed(joined(parts[0]));
  if (ptx.empty()) return "do {} while (0)";
  std::string out = "do { ";
  int next = 0;
  for (int section : {1, 2}) {
    for (const std::string& operand : split(parts[static_cast<std::size_t>(section)], ',')) {
      std::string text = trimmed(operand);
      if (text.empty()) continue;
      std::size_t open = text.find('(');
      out += fmt::format("{} o{} = {}; ", section == 1 ? "auto&" : "const auto", next++,
                         text.substr(open));
    }
  }
  return out + instructions_text(ptx) + "} while (0)";
}

std::string without_asm(const std::string& cuda) {
  std::string out;
  std::size_t at = 0;
  for (;;) {
    std::size_t found = cuda.find("asm", at);
    if (found == std::string::npos) return out + cuda.substr(at);
    std::size_t open = found + 3;
    bool whole = (found == 0 || !is_name(cuda[found - 1])) && !is_name(cuda[open]);
    while (cuda[open] == ' ') ++open;
    if (whole && cuda.compare(open, 8, "volatile") == 0) open += 8;
    while (cuda[open] == ' ' || cuda[open] == '\n') ++open;
    if (!whole || cuda[open] != '(') {
      out += cuda.substr(at, found + 3 - at);
      at = found + 3;
      continue;
    }
    std::size_t end = past_closing(cuda, open);
    out += cuda.substr(at, found - at) + statement_text(cuda.substr(open + 1, end - open - 2));
    at = end;
  }
}

std::string entry_text(const KernelText& kernel, const std::string& parameters) {
  const std::string& name = kernel.name;
  static const std::regex kName(R"((\w+)\s*$)");
  std::string call, sizes;
  std::size_t next = 0;
  for (const std::string& parameter : split(parameters, ',')) {
    std::string type = trimmed(std::regex_replace(trimmed(parameter), kName, ""));
    if (type.empty()) continue;
    if (type.ends_with("&")) type.pop_back();
    call += fmt::format("{}*static_cast<{}*>(arguments[{}])", call.empty() ? "" : ", ",
                        type.starts_with("const ") || type.ends_with("*") ? type : "const " + type,
                        next++);
    sizes += fmt::format("sizeof({}), ", type);
  }
  return fmt::format(
      "\n#pragma GCC visibility push(default)\nextern \"C\" {{\n"
      "void {}([[maybe_unused]] void** arguments) {{ {}({}); }}\n"
      "extern const unsigned long {}[];\nconst unsigned long {}[] = {{{}0}};\n"
      "extern const int {};\nconst int {} = {};\n}}\n#pragma GCC visibility pop\n",
      entry_name(name), name, call, sizes_name(name), sizes_name(name), sizes, threads_name(name),
      threads_name(name), kernel.max_threads);
}

}  // namespace

std::string instructions_text(const std::string& ptx) {
  std::string text = trimmed(ptx);
  if (text.front() == '{' && text.back() == '}') text = text.substr(1, text.size() - 2);
  std::string out;
  for (const std::string& instruction : split(text, ';')) {
    if (!trimmed(instruction).empty()) out += instruction_text(trimmed(instruction)) + " ";
  }
  return out;
}

std::string entry_name(const std::string& kernel) { return "sim_entry_" + kernel; }
std::string sizes_name(const std::string& kernel) { return "sim_sizes_" + kernel; }
std::string threads_name(const std::string& kernel) { return "sim_threads_" + kernel; }

HostText host_text(const std::string& cuda) {
  static const std::regex kShared(R"(extern __shared__ (__align__\(\d+\) )?(\w+) (\w+)\[\];)");
  static const std::regex kStatic(R"(__shared__ (\w+) (\w+)((\[\d+\])*);)");
  static const std::regex kConstant(R"(const\s+__grid_constant__\s+(\w+)\s+(\w+))");
  static const std::regex kKernel(
      R"(__global__\s+void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s+)?(\w+)\(([^)]*)\)\s*\{)");
  HostText out;
  std::string text = without_asm(cuda);
  text = std::regex_replace(text, kShared,
                            "$2* const $3 = reinterpret_cast<$2*>(sim::indices->shared);");
  text = std::regex_replace(text, kStatic,
                            "using SimType_$2 = $1$3; static const char sim_key_$2 = 0; "
                            "SimType_$2& $2 = *static_cast<SimType_$2*>(sim::static_shared("
                            "&sim_key_$2, sizeof(SimType_$2)));");
  text = std::regex_replace(text, kConstant, "const $1& $2");
  std::string entries;
  for (std::sregex_iterator k(text.begin(), text.end(), kKernel), end; k != end; ++k) {
    const std::smatch& kernel = *k;
    out.kernels.push_back(
        {.name = kernel[2], .max_threads = kernel[1].matched ? std::stoi(kernel[1]) : 1024});
    entries += entry_text(out.kernels.back(), kernel[3]);
  }
  out.text = "#include \"stretto/simulator/device_code.h\"\n#line 1\n" + text + entries;
  return out;
}

}  // namespace stretto::simulator
