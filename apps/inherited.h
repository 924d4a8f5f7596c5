// Options that have their value from the environment: an error is of the variable, not of an option
// that nobody wrote.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace stretto {

// The text with the variable in place of the option, for each option of the chosen command that
// `argv` does not give and the environment does.
std::string name_variables(const CLI::App& app, int argc, char** argv, std::string text);

}  // namespace stretto
