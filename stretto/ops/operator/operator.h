// What the command line, the proof and the choice of configs know of an operator: a row of the
// catalog, which makes its program at a shape that is asked for.
//
// Operators are used directly through their own header (Desc, Config, program function); a row is
// the common form in which all of them are listed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/ir/program.h"
#include "stretto/ops/operator/target.h"
#include "stretto/predict/launch_tables.h"

namespace stretto {

// The shape asked of an operator from outside. Global sizes, as on the command line; each operator
// says in its row of the catalog which of them it uses. 0: the operator's default.
struct OpShape {
  int world_size = 1;
  std::int64_t m = 0, n = 0, k = 0;
  std::map<std::string, std::int64_t> sizes = {};  // others, of program files (program_shape.h)
  DType dtype = DType::kF32;
  Target target = Target::kCpu;
  // A case launches with so many, from 0 to the program's bound for m; none: m, or by seed fewer.
  // The program does not depend on it.
  std::optional<std::int64_t> rows = {};
  // Some operators' `shapes` take a config of the tests' own, by which few rows make several tiles
  // and workers of every kind. False: the default config, at any size.
  bool test_config = false;
};

// The same shapes, with configs of tests.
std::vector<OpShape> with_test_configs(std::vector<OpShape> shapes);

// One row of the catalog.
struct OperatorInfo {
  const char* name;     // "ag_gemm"
  const char* summary;  // one line, with what m, n, k mean
  // The program at a shape, with the default config for it. Cheap: no data.
  std::function<Program(const OpShape&)> program;
  // Shapes that every test covers at a given world size: ragged ones and run-time extents among
  // them.
  std::function<std::vector<OpShape>(int world_size)> shapes;
  // A layer of a large model, for any world size: what a GPU config is made for.
  OpShape large;
  // What the program's tables hold in a usual launch, for predictions; none: they have none, or the
  // largest values are usual.
  std::function<predict::LaunchTables(const OpShape&)> tables = {};
};

}  // namespace stretto
