#include "apps/inherited.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace stretto {
namespace {

bool is_written(const CLI::Option& option, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return false;  // what follows is another command's
    for (const std::string& name : option.get_lnames()) {
      if (argument == "--" + name || argument.starts_with("--" + name + "=")) return true;
    }
    for (const std::string& name : option.get_snames()) {
      if (argument.starts_with("-" + name)) return true;
    }
  }
  return false;
}

bool is_part_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-'; }

// Whole words only: --model is no part of --model-name.
std::string replaced(std::string text, const std::string& word, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
    std::size_t end = at + word.size();
    if ((at > 0 && is_part_of_name(text[at - 1])) ||
        (end < text.size() && is_part_of_name(text[end]))) {
      at = end;
      continue;
    }
    text.replace(at, word.size(), by);
    at += by.size();
  }
  return text;
}

}  // namespace

std::string name_variables(const CLI::App& app, int argc, char** argv, std::string text) {
  std::vector<std::string> arguments(argv, argv + argc);
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) {
      const std::string& variable = option->get_envname();
      if (variable.empty() || std::getenv(variable.c_str()) == nullptr) continue;
      if (is_written(*option, arguments)) continue;
      for (const std::string& name : option->get_lnames()) {
        text = replaced(text, "--" + name, variable);
      }
    }
  }
  return text;
}

}  // namespace stretto
