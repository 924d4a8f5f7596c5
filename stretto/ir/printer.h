// The text form of a program, at both levels: what `stretto explain` shows, what a stage dump holds
// and what parser.h reads back. Also one operation, expression or region as it appears there, for
// diagnostics. Text depends on the program alone, never on addresses or time.
//
//   program "ag_gemm" world 4 level tile loc("ag_gemm.cc":10) {
//     rank %rank
//     extent %m bound 512
//     input @a : bf16[%m, 64] symmetric
//     signal ready channels 4 per_source
//     on_start start body {
//       notify ready[%rank] on 1 by 1
//     }
//     role gemm sms 8 tiles %t < (%m + 127) / 128 {
//       agent main body {
//         values $0: bf16[128, 64]
//         $0 = load @a[%t * 128, 0] on 1 tile [128, 64] loc("ag_gemm.cc":14)
//       }
//     }
//   }
//
// print() loses nothing that has a meaning: parse(print(p)) is p for every program that verifies.
// Fields that an operation does not use (op_info.h) are not part of the text. Indices out of range
// and absent expressions print as <...>, so that a diagnostic can show a broken program;
// expressions too large to verify end in "...".
#pragma once

#include <string>

#include "stretto/ir/program.h"

namespace stretto {

std::string print(const Program& program);

// One line without loc and newline, long expressions cut; bodies are shown as "{ ... }". `role`
// names pipes and barriers, nullptr in on_start and on_end.
std::string print_op(const Program& program, const Role* role, const Op& op);
std::string print_expr(const Program& program, const Expr& expr);
std::string print_region(const Program& program, const Region& region);

// The same program, field by field, as far as the text form shows it.
bool equal(const Program& a, const Program& b);

}  // namespace stretto
