#include "stretto/testing/cases/cases.h"

#include <algorithm>
#include <map>

#include "stretto/base/errors.h"
#include "stretto/ir/printer.h"

namespace stretto {
namespace {

const std::map<std::string, MakeCase>& by_name() {
  static const std::map<std::string, MakeCase> all = [] {
    std::map<std::string, MakeCase> made;
    for (const auto& part : {collective_cases(),   gemm_cases(),        ag_gemm_cases(),
                             ag_columns_cases(),   gemm_rs_cases(),     gemm_ar_cases(),
                             norm_cases(),         attention_cases(),   packed_attention_cases(),
                             paged_decode_cases(), paged_write_cases(), sequence_attention_cases(),
                             flash_decode_cases(), ulysses_cases(),     embedding_cases(),
                             route_cases(),        moe_cases(),         expert_tables_cases(),
                             tp_cases(),           ep_moe_cases(),      ep_cases(),
                             uneven_cases(),       quantize_cases(),    gemm_ag_cases()}) {
      for (const OperatorCase& c : part) {
        STRETTO_CHECK(made.emplace(c.name, c.make).second, c.name + " has two cases");
      }
    }
    return made;
  }();
  return all;
}

}  // namespace

OpCase make_case(const OperatorInfo& op, const OpShape& shape, std::uint64_t seed) {
  auto found = by_name().find(op.name);
  STRETTO_CHECK(found != by_name().end(), std::string(op.name) + " has no case");
  return found->second(shape, seed);
}

std::vector<std::vector<OpCase>> cases_of_seeds(const OperatorInfo& op, const OpShape& shape,
                                                std::uint64_t seed, int count) {
  std::vector<std::vector<OpCase>> by_program;
  for (int i = 0; i < count; ++i) {
    OpCase made = make_case(op, shape, seed + static_cast<std::uint64_t>(i));
    auto same = std::ranges::find_if(by_program, [&](const std::vector<OpCase>& cases) {
      return equal(cases.front().program, made.program);
    });
    if (same == by_program.end()) same = by_program.emplace(same);
    same->push_back(std::move(made));
  }
  return by_program;
}

std::vector<OpCase> cases_of_rows(const OperatorInfo& op, const OpShape& shape,
                                  std::uint64_t seed) {
  std::vector<OpCase> cases{make_case(op, shape, seed)};
  const Program& program = cases.front().program;
  auto extent = std::find_if(program.vars.begin(), program.vars.end(),
                             [](const Var& v) { return v.kind == VarKind::kExtent; });
  if (extent == program.vars.end()) return cases;
  const std::int64_t bound = extent->bound;
  for (std::int64_t rows : {bound, bound / 2, std::int64_t{1}, std::int64_t{0}}) {
    bool is_new = std::none_of(cases.begin(), cases.end(),
                               [&](const OpCase& c) { return c.extents.front() == rows; });
    if (!is_new) continue;
    OpShape at_rows = shape;
    at_rows.rows = rows;
    // Even steps, since some configs go by odd and even seeds.
    cases.push_back(make_case(op, at_rows, seed + 2 * cases.size()));
    STRETTO_CHECK(cases.back().extents.front() == rows, "a case with rows of its own");
    STRETTO_CHECK(equal(cases.back().program, cases.front().program),
                  "a program that depends on the rows of a launch");
  }
  return cases;
}

}  // namespace stretto
