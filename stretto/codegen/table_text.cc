#include "stretto/codegen/table_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "stretto/base/errors.h"
#include "stretto/codegen/expr_text.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/tables.h"
#include "stretto/ir/text_form.h"

namespace stretto {
namespace {

// Values past the first are not told apart by a bit each of a block's shared memory, and entries
// past the second not by comparing each with all before it.
constexpr std::int64_t kMostDistinct = std::int64_t{200} * 1024 * 8, kMostCompared = 1 << 16;

// Of a permutation: whether its entries are compared with each other, as where they are few among
// very many values, or some of them name nothing.
bool compares_pairs(const Program& program, int tensor) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(tensor)];
  if (t.contract.kind != ContractKind::kPermutation || t.shape.size() != 1) return false;
  std::vector<std::int64_t> vars = initial_vars(program, 0, extent_bounds(program));
  std::int64_t entries = bound_shape(program, tensor)[0], lo = eval(t.contract.lo, vars);
  std::int64_t values = eval(t.contract.hi, vars) - lo;
  return entries <= kMostCompared && (lo < 0 || values > kMostDistinct);
}

void tables_of(const Expr& expr, std::set<int>& out) {
  if (!expr.has_value()) return;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable) out.insert(static_cast<int>(n.value));
  for (const Expr& arg : n.args) tables_of(arg, out);
}

void tables_of(const Block& block, std::set<int>& out) {
  for (const Op& op : block) {
    for (const Expr& e : op.exprs) tables_of(e, out);
    if (op.region) out.insert(op.region->tensor);  // rows are picked by tiles of tables
    for (const Block& body : op.bodies) tables_of(body, out);
  }
}

std::set<int> tables_of(const Program& program) {
  std::set<int> out;
  for (const Agent* edge : {&program.on_start, &program.on_end}) tables_of(edge->body, out);
  for (const Role& role : program.roles) {
    for (const Agent& agent : role.agents) tables_of(agent.body, out);
  }
  return out;
}

// The constant of a kernel that says where in its list of sites a table stands that it makes.
std::string made_table_site(int tensor) { return fmt::format("site_of_table_{}", tensor); }

const char* entry_type(const Tensor& table) { return table.dtype == DType::kI64 ? "i64" : "i32"; }

std::string contract_text(const Program& program, int tensor) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(tensor)];
  std::vector<std::int64_t> bounds = bound_shape(program, tensor);
  auto size = [&](std::size_t d) { return "i64(" + expr_text(program, t.shape[d]) + ")"; };
  // Rows are all but the last dimension; those in between must be as long as their storage.
  std::size_t last = t.shape.size() - 1;
  std::string rows = last == 0 ? "1" : size(0);
  for (std::size_t d = 1; d < last; ++d) {
    if (!t.shape[d].is_const()) {
      throw UserError(
          fmt::format("{}: table '{}': dimension {} is not constant", program.name, t.name, d));
    }
    rows += fmt::format(" * {}", bounds[d]);
  }
  ContractKind kind = t.contract.kind;
  bool distinct = kind == ContractKind::kPermutation, in_pairs = compares_pairs(program, tensor);
  bool ends = kind == ContractKind::kPartition, ascends = ends || kind == ContractKind::kAscending;
  return fmt::format("{{{} * {}, max(i64(1), {}), {}, {}, {}, {}, {}, {}, {}}}", rows, size(last),
                     size(last), bounds[last], expr_text(program, t.contract.lo),
                     expr_text(program, t.contract.hi), ascends, ends, distinct && !in_pairs,
                     distinct && in_pairs);
}

}  // namespace

std::string table_entry_text(const Program& program, const ExprNode& node) {
  auto idx = static_cast<std::size_t>(node.value);
  const Tensor& table = program.tensors[idx];
  std::vector<std::int64_t> shape = bound_shape(program, static_cast<int>(idx));
  std::string offset;
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    std::string term = fmt::format("i64({}) * {}", expr_text(program, node.args[d]), stride);
    offset = offset.empty() ? term : term + " + " + offset;
    stride *= shape[d];
  }
  std::string place =
      fmt::format("{}, {}, {}, {}", tensor_text(program, static_cast<int>(idx), "p.rank"), offset,
                  expr_text(program, table.contract.lo), expr_text(program, table.contract.hi));
  if (is_made_table(table)) {
    return fmt::format("int(made_entry<{}>({}, p.watch, {}))", entry_type(table), place,
                       made_table_site(static_cast<int>(idx)));
  }
  bool input = table.kind == TensorKind::kInput && table.dtype == DType::kI32;
  return fmt::format("int({}({}))",
                     input ? "input_entry" : fmt::format("table_entry<{}>", entry_type(table)),
                     place);
}

std::string table_checks_text(const Program& program, LaunchPlan& launch) {
  std::string checks, made;
  for (int idx : tables_of(program)) {
    const Tensor& t = program.tensors[static_cast<std::size_t>(idx)];
    if (is_made_table(t)) {
      made += fmt::format("  [[maybe_unused]] constexpr int {} = {};  // '{}'\n",
                          made_table_site(idx), launch.sites.size(), t.name);
      launch.sites.push_back({.table = idx, .file = t.loc.file, .line = t.loc.line});
    }
    if (t.kind != TensorKind::kInput || !is_table(t)) continue;
    if (t.contract.kind == ContractKind::kPermutation && !compares_pairs(program, idx)) {
      std::int64_t values =
          eval(t.contract.hi - t.contract.lo, initial_vars(program, 0, extent_bounds(program)));
      if (values > kMostDistinct) {
        throw UserError(fmt::format("{}: permutation '{}' of {} values; on a GPU at most {}",
                                    program.name, t.name, values, kMostDistinct));
      }
      launch.shared_bytes =
          std::max(launch.shared_bytes, static_cast<std::size_t>(values + 31) / 32 * 4);
    }
    launch.sites.push_back({.table = idx, .file = t.loc.file, .line = t.loc.line});
    checks += fmt::format(
        "  check_table<{}>(p.tensors[{}][p.rank], {}, reinterpret_cast<u32*>(smem), p.watch, "
        "{});  // '{}'\n",
        entry_type(t), idx, contract_text(program, idx), launch.sites.size() - 1, t.name);
  }
  return made + checks;
}

std::string describe_broken_table(const Program& program, int tensor, std::int64_t entry,
                                  std::int64_t value) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(tensor)];
  return fmt::format("table '{}' breaks its contract ({} {}, {}): entry {} is {}", t.name,
                     name(t.contract.kind), print_expr(program, t.contract.lo),
                     print_expr(program, t.contract.hi), entry, value);
}

}  // namespace stretto
