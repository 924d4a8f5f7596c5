// Index expressions as C.
#pragma once

#include <functional>
#include <string>

#include "stretto/ir/program.h"

namespace stretto {

// Name of an element type in generated code.
const char* element_text(DType dtype);
// UserError for a program of doubles, or of values of integers but i32, which the device library
// does not have.
void refuse_missing_types(const Program& program);
// Name of a program variable in generated code.
std::string var_text(const Program& program, int var_idx);
// Where a rank's tensor begins, of one with slots that of the launch; `rank` in C.
std::string tensor_text(const Program& program, int tensor_idx, const std::string& rank);
// An `int` expression; tables are read through `tables[tensor]` accessors named table_<tensor>.
std::string expr_text(const Program& program, const Expr& expr);
// The largest power of two, up to 1024, of which its structure shows that it divides the
// expression's every value; named intermediates are those of an agent's body.
std::int64_t known_factor(const Expr& expr, const Block& body);

// Whether its structure shows that the expression is >= 0. `let_value` gives the expression of a
// named intermediate, or an absent one.
bool never_negative(const Program& program, const Expr& expr,
                    const std::function<Expr(int)>& let_value);
// The same with the named intermediates and the loops of an agent's body.
bool never_negative(const Program& program, const Expr& expr, const Block& body);

}  // namespace stretto
