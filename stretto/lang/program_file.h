// A C++ file with a tile program, compiled and loaded while the process runs:
//   stretto::Program stretto_program(int world_size);
// or, where sizes, dtype and machine are to be asked for from outside (program_shape.h),
//   stretto::Program stretto_program(const stretto::ProgramShape& shape);
// The language itself must be among the process's global symbols. Users of ProgramFile are the
// command line and the Python package.
#pragma once

#include <filesystem>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/lang/program_shape.h"

namespace stretto {

class ProgramFile {
 public:
  // Compiles the file with $CXX (c++) in $TMPDIR against the headers in `include_dir`, unless an
  // object of the same text and headers is in env_cache_dir() and can be loaded; loads it for the
  // rest of the process. Where nothing can be kept there, a warning says so.
  // UserError with the compiler's messages, or where the file does not define stretto_program.
  ProgramFile(const std::filesystem::path& file, const std::filesystem::path& include_dir);

  // UserError for whatever the file's function throws, and for sizes where it takes none.
  Program program(const ProgramShape& shape) const;
  bool takes_shape() const { return build_shape_ != nullptr; }
  Program program(int world_size) const { return program(ProgramShape{.world_size = world_size}); }

 private:
  Program call(const ProgramShape& shape) const;

  std::string name_;
  // One of them is there.
  Program (*build_)(int) = nullptr;
  Program (*build_shape_)(const ProgramShape&) = nullptr;
};

}  // namespace stretto
