#include "stretto/ir/printer.h"

#include <fmt/format.h>

#include <utility>

#include "stretto/ir/limits.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/text_form.h"

namespace stretto {
namespace {

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

struct ExprSyntax {
  int precedence;
  const char* symbol;
};
constexpr int kPrimary = 7;

// min, max and select are written as calls and need no precedence.
ExprSyntax expr_syntax(ExprOp op) {
  switch (op) {
    case ExprOp::kOr:
      return {1, "||"};
    case ExprOp::kAnd:
      return {2, "&&"};
    case ExprOp::kLt:
      return {3, "<"};
    case ExprOp::kLe:
      return {3, "<="};
    case ExprOp::kEq:
      return {3, "=="};
    case ExprOp::kAdd:
      return {4, "+"};
    case ExprOp::kSub:
      return {4, "-"};
    case ExprOp::kMul:
      return {5, "*"};
    case ExprOp::kFloorDiv:
      return {5, "/"};
    case ExprOp::kMod:
      return {5, "%"};
    case ExprOp::kNot:
      return {6, "!"};
    case ExprOp::kMin:
      return {kPrimary, "min"};
    case ExprOp::kMax:
      return {kPrimary, "max"};
    case ExprOp::kSelect:
      return {kPrimary, "select"};
    case ExprOp::kConst:
    case ExprOp::kVar:
    case ExprOp::kTable:
      break;
  }
  return {kPrimary, ""};
}

// Expressions share parts, so written out they can be far larger than in memory: what is beyond a
// number of parts prints as "...". A program that verifies stays below the first; a message wants
// the second.
constexpr int kMaxPartsOfMessage = 60;

class Printer {
 public:
  Printer(const Program& program, const Role* role, int max_parts)
      : program_(program), role_(role), max_parts_(max_parts) {}

  std::string take() { return std::move(out_); }

  void program() {
    add("program {} world {} level {}", in_quotes(program_.name), program_.world_size,
        name(program_.level));
    loc(program_.loc);
    open();
    for (const Var& v : program_.vars) var(v);
    for (const Tensor& t : program_.tensors) tensor(t);
    for (const Signal& s : program_.signals) signal(s);
    for (const TileMap& m : program_.maps) map(m);
    if (!is_empty(program_.on_start)) agent("on_start", program_.on_start);
    for (const Role& r : program_.roles) role(r);
    if (!is_empty(program_.on_end)) agent("on_end", program_.on_end);
    close();
  }

  void expr(const Expr& e) {
    num_parts_ = 0;
    part(e, 0);
  }

  void part(const Expr& e, int min_precedence) {
    if (!e.has_value()) return add("<absent>");
    if (++num_parts_ > max_parts_) return add("...");
    const ExprNode& n = e.node();
    ExprSyntax syntax = expr_syntax(n.op);
    bool parentheses = syntax.precedence < min_precedence;
    if (parentheses) out_ += '(';
    switch (n.op) {
      case ExprOp::kConst:
        add("{}", n.value);
        break;
      case ExprOp::kVar:
        reference('%', program_.vars, n.value);
        break;
      case ExprOp::kTable:
        reference('@', program_.tensors, n.value);
        parts('[', n.args, ']');
        break;
      case ExprOp::kMin:
      case ExprOp::kMax:
      case ExprOp::kSelect:
        out_ += syntax.symbol;
        parts('(', n.args, ')');
        break;
      case ExprOp::kNot:
        out_ += '!';
        part(n.args[0], syntax.precedence);
        break;
      default:  // binary; comparisons do not chain, the rest associates to the left
        part(n.args[0], syntax.precedence == 3 ? 4 : syntax.precedence);
        add(" {} ", syntax.symbol);
        part(n.args[1], syntax.precedence + 1);
    }
    if (parentheses) out_ += ')';
  }

  void region(const Region& r) {
    reference('@', program_.tensors, r.tensor);
    expr_list('[', r.origin, ']');
    optional_expr(" on ", r.rank);
    add(" tile [{}, {}]", r.rows, r.cols);
    int num_dims = static_cast<int>(r.origin.size());
    if (r.row_dim != num_dims - 2 || r.col_dim != num_dims - 1) {
      add(" dims {}, {}", r.row_dim, r.col_dim);
    }
    optional_expr(" until_row ", r.row_end);
    optional_expr(" until_col ", r.col_end);
  }

  // Everything of an operation that stands on its own line, up to its loc and bodies.
  void op_line(const Op& op) {
    if (op.result >= 0) add("${} = ", op.result);
    out_ += op_info(op.code).name;
    for (const SyntaxPiece& p : op_syntax(op.code)) piece(op, p);
    if (op.stage != 0) add(" stage {}", op.stage);
    if (op.multicast != 0) add(" multicast {}", op.multicast);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
  }
  void line() { out_ += '\n' + std::string(static_cast<std::size_t>(2 * indent_), ' '); }
  void open() {
    out_ += " {";
    ++indent_;
  }
  void close() {
    --indent_;
    line();
    out_ += '}';
  }

  void loc(const SourceLoc& l) {
    if (!l.file.empty() || l.line != 0) add(" loc({}:{})", in_quotes(l.file), l.line);
  }

  // sigil 0: a bare name.
  template <typename T>
  void reference(char sigil, const std::vector<T>& items, std::int64_t idx) {
    if (sigil != 0) out_ += sigil;
    if (idx >= 0 && static_cast<std::size_t>(idx) < items.size()) {
      out_ += items[static_cast<std::size_t>(idx)].name;
    } else {
      add("<{}>", idx);
    }
  }

  void expr_list(char open, const std::vector<Expr>& exprs, char close) {
    out_ += open;
    for (std::size_t i = 0; i < exprs.size(); ++i) {
      if (i > 0) out_ += ", ";
      expr(exprs[i]);
    }
    out_ += close;
  }
  void parts(char open, const std::vector<Expr>& args, char close) {
    out_ += open;
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (i > 0) out_ += ", ";
      part(args[i], 0);
    }
    out_ += close;
  }
  void optional_expr(const char* keyword, const Expr& e) {
    if (!e.has_value()) return;
    out_ += keyword;
    expr(e);
  }

  void type(const ValueType& t) { add("{}[{}, {}]", short_name(t.dtype), t.rows, t.cols); }

  void var(const Var& v) {
    line();
    add("{} %{}", name(v.kind), v.name);
    if (v.is_float) {
      add(" f32");
    } else if (v.bound != 0) {
      add(" bound {}", v.bound);
    }
  }

  void tensor(const Tensor& t) {
    line();
    add("{} @{} : {}", name(t.kind), t.name, short_name(t.dtype));
    expr_list('[', t.shape, ']');
    if (t.space == Space::kSymmetric) out_ += " symmetric";
    if (t.num_slots != 1) add(" slots {}", t.num_slots);
    if (t.packet) out_ += " packet";
    if (t.contract.kind != ContractKind::kNone) {
      add(" contract {} ", name(t.contract.kind));
      expr(t.contract.lo);
      out_ += ", ";
      expr(t.contract.hi);
    }
    if (t.given_on.has_value()) {
      out_ += " given_on ";
      expr(t.given_on);
    }
    loc(t.loc);
  }

  void signal(const Signal& s) {
    line();
    add("signal {} channels {}", s.name, s.num_channels);
    if (s.per_source) out_ += " per_source";
    loc(s.loc);
  }

  void map(const TileMap& m) {
    line();
    add("map {} of ", m.name);
    reference('@', program_.tensors, m.tensor);
    add(" tile_rows {}", m.tile_rows);
    optional_expr(" rows_per_rank ", m.rows_per_rank);
    if (m.channels_per_rank != 1) add(" channels_per_rank {}", m.channels_per_rank);
    if (m.table_driven) {
      add(" table tiles {} channels {}", m.num_tiles, m.num_channels);
      for (auto [keyword, tensor_idx] :
           {std::pair{"low", m.low}, std::pair{"high", m.high}, std::pair{"rank", m.rank},
            std::pair{"channel", m.channel}, std::pair{"count", m.count}}) {
        add(" {} ", keyword);
        reference('@', program_.tensors, tensor_idx);
      }
    }
    loc(m.loc);
  }

  static bool is_empty(const Agent& a) {
    return a.name.empty() && a.kind == AgentKind::kBody && a.num_threads == 0 &&
           a.num_registers == 0 && a.values.empty() && a.body.empty();
  }

  void role(const Role& r) {
    role_ = &r;
    line();
    add("role {} {} {}", r.name, name(r.resource.kind), r.resource.num_workers);
    if (r.resource.cluster_size != 1) add(" cluster {}", r.resource.cluster_size);
    if (r.resource.num_stages != 0) add(" stages {}", r.resource.num_stages);
    if (r.resource.tickets) out_ += " tickets";
    if (r.resource.num_consumers != 1) add(" consumers {}", r.resource.num_consumers);
    if (r.resource.store_slots != 0) add(" store_slots {}", r.resource.store_slots);
    if (r.resource.load_slots != 0) add(" load_slots {}", r.resource.load_slots);
    if (r.resource.stagger != 0) add(" stagger {}", r.resource.stagger);
    if (r.resource.tile_slots != 2) add(" tile_slots {}", r.resource.tile_slots);
    if (r.resource.products != ProductOrder::kAhead) add(" products {}", name(r.resource.products));
    if (r.resource.beside >= 0) {
      out_ += " beside ";
      reference(0, program_.roles, r.resource.beside);
    }
    out_ += " tiles ";
    reference('%', program_.vars, r.tile_var);
    out_ += " < ";
    expr(r.num_tiles);
    loc(r.loc);
    open();
    for (const Pipe& p : r.pipes) pipe(r, p);
    for (const Barrier& b : r.barriers) {
      line();
      add("barrier {} arrivals {}", b.name, b.num_arrivals);
    }
    for (const Agent& a : r.agents) agent("agent", a);
    close();
    role_ = nullptr;
  }

  void pipe(const Role& r, const Pipe& p) {
    line();
    add("pipe {} : ", p.name);
    type(p.type);
    add(" slots {} swizzle {} producer ", p.num_slots, name(p.swizzle));
    reference(0, r.agents, p.producer);
    out_ += " consumer ";
    reference(0, r.agents, p.consumer);
    if (p.shares < 0) return;
    out_ += " shares ";
    reference(0, r.pipes, p.shares);
  }

  void agent(const char* keyword, const Agent& a) {
    line();
    add("{} ", keyword);
    if (!a.name.empty()) add("{} ", a.name);
    out_ += name(a.kind);
    if (a.num_threads != 0) add(" threads {}", a.num_threads);
    if (a.num_registers != 0) add(" registers {}", a.num_registers);
    open();
    if (!a.values.empty()) {
      line();
      out_ += "values ";
      for (std::size_t i = 0; i < a.values.size(); ++i) {
        add("{}${}: ", i > 0 ? ", " : "", i);
        type(a.values[i]);
      }
    }
    for (const Op& op : a.body) this->op(op);
    close();
  }

  void op(const Op& op) {
    line();
    op_line(op);
    loc(op.loc);
    for (std::size_t i = 0; i < op.bodies.size(); ++i) {
      if (i > 0 && op.bodies[i].empty()) continue;
      if (i > 0) out_ += " else";
      open();
      for (const Op& inner : op.bodies[i]) this->op(inner);
      close();
    }
  }

  void piece(const Op& op, const SyntaxPiece& p) {
    bool tight = p.literal == "[" || p.literal == "]" || (!out_.empty() && out_.back() == '[');
    bool absent = (p.field == Field::kFromExpr2 && op.exprs.size() <= 2) ||
                  (p.field == Field::kRowsExpr0 && op.exprs.empty()) ||
                  (p.field == Field::kByOperand0 && op.operands.empty());
    if (!tight && !absent) out_ += ' ';
    switch (p.field) {
      case Field::kLiteral:
        return add("{}", p.literal);
      case Field::kVar:
        return reference('%', program_.vars, op.var);
      case Field::kExpr0:
      case Field::kExpr1:
      case Field::kExpr2:
        return nth_expr(op, static_cast<int>(p.field) - static_cast<int>(Field::kExpr0));
      case Field::kFromExpr2:
        if (op.exprs.size() > 2) {
          out_ += "from ";
          nth_expr(op, 2);
        }
        return;
      case Field::kRowsExpr0:
        if (!op.exprs.empty()) {
          out_ += "rows ";
          nth_expr(op, 0);
        }
        if (op.exprs.size() > 1) {
          out_ += " cols ";
          nth_expr(op, 1);
        }
        return;
      case Field::kByOperand0:
        if (!op.operands.empty()) add("by ${}", op.operands[0]);
        return;
      case Field::kOperand0:
      case Field::kOperand1:
        return operand(op, p.field == Field::kOperand1 ? 1 : 0);
      case Field::kOperands:
        for (std::size_t i = 0; i < op.operands.size(); ++i) {
          add("{}${}", i > 0 ? ", " : "", op.operands[i]);
        }
        return;
      case Field::kRegion:
        return op.region ? region(*op.region) : add("<absent>");
      case Field::kRegion2:
        return op.region2 ? region(*op.region2) : add("<absent>");
      case Field::kValue:
        return add("{}", op.value);
      case Field::kAxis:
        return add("{}", op.axis);
      case Field::kMode:
        return add("{}", name(op.mode));
      case Field::kUnary:
        return add("{}", name(op.unary));
      case Field::kBinary:
        return add("{}", name(op.binary));
      case Field::kReduce:
        return add("{}", name(op.reduce));
      default:
        return symbol(op, p.field);
    }
  }

  void symbol(const Op& op, Field field) {
    static const std::vector<Pipe> kNoPipes;
    static const std::vector<Barrier> kNoBarriers;
    if (field == Field::kSignal) return reference(0, program_.signals, op.symbol);
    if (field == Field::kSignal2) return reference(0, program_.signals, op.symbol2);
    if (field == Field::kMap) return reference(0, program_.maps, op.symbol);
    if (field == Field::kPipe) return reference(0, role_ ? role_->pipes : kNoPipes, op.symbol);
    reference(0, role_ ? role_->barriers : kNoBarriers, op.symbol);
  }

  void nth_expr(const Op& op, int n) {
    auto idx = static_cast<std::size_t>(n);
    expr(idx < op.exprs.size() ? op.exprs[idx] : Expr());
  }
  void operand(const Op& op, std::size_t n) {
    if (n < op.operands.size()) return add("${}", op.operands[n]);
    out_ += "<absent>";
  }

  const Program& program_;
  const Role* role_;
  int max_parts_;
  int num_parts_ = 0;  // of the expression being printed
  std::string out_;
  int indent_ = 0;
};

}  // namespace

std::string print(const Program& program) {
  Printer printer(program, nullptr, kMaxExprNodes);
  printer.program();
  return printer.take() + "\n";
}

std::string print_op(const Program& program, const Role* role, const Op& op) {
  Printer printer(program, role, kMaxPartsOfMessage);
  printer.op_line(op);
  return printer.take() + (op.bodies.empty() ? "" : " { ... }");
}

std::string print_expr(const Program& program, const Expr& expr) {
  Printer printer(program, nullptr, kMaxPartsOfMessage);
  printer.expr(expr);
  return printer.take();
}

std::string print_region(const Program& program, const Region& region) {
  Printer printer(program, nullptr, kMaxPartsOfMessage);
  printer.region(region);
  return printer.take();
}

bool equal(const Program& a, const Program& b) { return print(a) == print(b); }

}  // namespace stretto
