// A C++ file with a tile program, compiled and loaded while the process runs:
//   stretto::Program stretto_program(int world_size);
// The language itself must be among the process's global symbols. Users of ProgramFile are the
// command line and the Python package.
#pragma once

#include <filesystem>
#include <string>

#include "stretto/ir/program.h"

namespace stretto {

class ProgramFile {
 public:
  // Compiles the file with $CXX (c++) against the headers in `include_dir`, unless an object made
  // from the same text and headers is in env_cache_dir(); loads it for the rest of the process.
  // UserError with the compiler's messages, or where the file does not define stretto_program.
  ProgramFile(const std::filesystem::path& file, const std::filesystem::path& include_dir);

  // UserError for whatever the file's function throws.
  Program program(int world_size) const;

 private:
  std::string name_;
  Program (*build_)(int) = nullptr;
};

}  // namespace stretto
