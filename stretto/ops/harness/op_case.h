// What every operator hands to the tests, the proof, the benchmark and the command line: a program
// at a shape, and, for checking, random inputs with the outputs that a plain fp64 reference
// computes from them.
//
// Operators are used directly through their own header (Desc, Config, program function); OpCase is
// the common shape in which one matrix of tests covers all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/ir/program.h"
#include "stretto/ops/harness/target.h"
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
  // Of a case's launch, from 0 to the bound that the program has for m; none: m, or by seed fewer.
  // The program does not depend on it.
  std::optional<std::int64_t> rows = {};
  // Of `shapes` of some operators: a config of the tests' own, by which few rows make several tiles
  // and workers of every kind. False: the default config, at any size.
  bool test_config = false;
};

// The same shapes, with configs of tests.
std::vector<OpShape> with_test_configs(std::vector<OpShape> shapes);

// Row-major values of one tensor on one rank, at the bound shape; the reference works on these.
using Values = std::vector<double>;

struct OpCase {
  Program program;                    // tile level
  std::vector<std::int64_t> extents;  // run-time sizes of the launch
  std::string config;                 // desc and config, printable
  // [rank][tensor]: what the caller passes for inputs and for state (values already representable
  // in the dtype, so that the reference sees what the program sees); empty for outputs and buffers.
  std::vector<std::vector<Values>> inputs;
  // [rank][tensor]: expected outputs and state after one launch; empty for inputs and buffers. NaN
  // entries are not compared (elements outside the run-time shape).
  std::vector<std::vector<Values>> expected;
  // Outputs and state whose expected values are what a launch leaves to the bit, since it copies
  // them. So are integers, and what a launch leaves of state as it was.
  std::vector<std::string> exact = {};
  // Outputs and state of which nobody is promised anything; of every other one something has to be
  // compared (case_data.h: check_expected).
  std::vector<std::string> unchecked = {};
  // |got - expected| <= tolerance * (|expected| + scale), where scale is the magnitude of the terms
  // summed.
  double tolerance = 0;  // 0: bitwise
  double scale = 1;
  // Where rows are of very different magnitudes, in place of `scale`: by the tensor's name,
  // [rank][element].
  std::map<std::string, std::vector<Values>> scales = {};
  double flops = 0;       // of one launch, all ranks; 0 where not meaningful
  double comm_bytes = 0;  // that one rank receives from others in one launch
};

// One row of the catalog.
struct OperatorInfo {
  const char* name;     // "ag_gemm"
  const char* summary;  // one line, with what m, n, k mean
  // The program at a shape, with the default config for it. Cheap: no data.
  std::function<Program(const OpShape&)> program;
  std::function<OpCase(const OpShape&, std::uint64_t seed)> make_case;
  // Shapes that every test covers at a given world size: ragged ones and run-time extents among
  // them.
  std::function<std::vector<OpShape>(int world_size)> shapes;
  // A layer of a large model, for any world size: what a GPU config is made for.
  OpShape large;
  // What the program's tables hold in a usual launch, for predictions; none: they have none, or the
  // largest values are usual.
  std::function<predict::LaunchTables(const OpShape&)> tables = {};
};

// Cases of `count` seeds from this one on, those of the same program together: launched in turn, no
// launch has the inputs and tables of the one before.
std::vector<std::vector<OpCase>> cases_of_seeds(const OperatorInfo& op, const OpShape& shape,
                                                std::uint64_t seed, int count);

// Cases of one program that differ in their run-time rows and inputs: m, the bound, half of it, one
// and none, each number once; one case where the program has no such extent.
std::vector<OpCase> cases_of_rows(const OperatorInfo& op, const OpShape& shape, std::uint64_t seed);

// Random values in [-1, 1) rounded to `dtype`; the sequence depends on the seed alone.
Values random_values(std::size_t count, DType dtype, std::uint64_t seed);
Values round_to(const Values& values, DType dtype);
// Default tolerance of a sum of `terms` products in fp32, for kF64 in double, with the result
// rounded to `dtype`.
double sum_tolerance(DType dtype, std::int64_t terms);
// [world][tensors] of empty vectors.
std::vector<std::vector<Values>> no_values(const Program& program);

}  // namespace stretto
