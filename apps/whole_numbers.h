// Whole numbers on the command line: decimal, as they are printed. The options' own conversion
// takes 010 for 8, and what does not fit 64 bits for the largest number that does. Of no number at
// all, whole or not, it makes 0.
#pragma once

namespace CLI {
class App;
}

namespace stretto {

// Of every command's options. Called when all have been added.
void read_whole_numbers(CLI::App& app);

}  // namespace stretto
