// The recursive-descent parser behind parser.h: parser.cc reads declarations and roles,
// parser_op.cc operations and regions, parser_expr.cc index expressions.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stretto/ir/op_info.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/text_form.h"
#include "stretto/ir/token_reader.h"

namespace stretto {

class Parser {
 public:
  Parser(std::string_view text, const std::string& where, MissingLocs missing_locs)
      : reader_(text, where), where_(where), missing_locs_(missing_locs) {}

  Program program();

 private:
  // Names of one kind in declaration order; text_view keys point into the source.
  struct Names {
    std::unordered_map<std::string_view, int> index;
  };

  // Adds the next name to `names`; refuses one that is there.
  std::string declare(Names& names, TokenKind kind, const char* what);
  int resolve(const Names& names, TokenKind kind, const char* what);
  int resolve(const Names& names, const Token& token, const char* what);

  void header();
  void declaration();
  void var(VarKind kind);
  void tensor(TensorKind kind, const Token& start);
  void signal(const Token& start);
  void map(const Token& start);
  void role(const Token& start);
  void pipe(Role& role);
  Agent agent(bool named);
  void values(Agent& agent);
  ValueType value_type();
  DType dtype();
  SourceLoc loc(const Token& start);

  // parser_op.cc
  Block block(int depth);  // reads up to and including '}'
  Op op(int depth);
  void bodies(Op& op, const OpInfo& info, int depth);
  void piece(Op& op, const OpInfo& info, const SyntaxPiece& piece);
  void enumerator(Op& op, Field field);
  void operands(Op& op, const OpInfo& info);
  int register_number(const char* what);
  Region region();

  // parser_expr.cc
  struct Parsed {
    Expr expr;
    int depth = 1;
  };
  Expr expr();
  std::vector<Expr> expr_list(std::string_view open, std::string_view close);
  Parsed binary(int min_precedence, int nesting);
  Parsed unary(int nesting);
  Parsed call(ExprOp op, std::size_t num_args, int nesting);
  Parsed make(const Token& at, ExprOp op, const std::vector<Parsed>& args);
  void count_node();

  TokenReader reader_;
  const std::string& where_;
  MissingLocs missing_locs_;
  Program program_;
  Names vars_, tensors_, signals_, maps_, roles_;
  Names pipes_, barriers_;      // of the role being read
  std::size_t num_values_ = 0;  // of the agent being read
  int num_expr_nodes_ = 0;
};

}  // namespace stretto
