#include "stretto/ir/parser.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/parser_impl.h"

namespace stretto {

std::string Parser::declare(Names& names, TokenKind kind, const char* what) {
  Token token = reader_.expect(kind, what);
  if (!names.index.emplace(token.text, static_cast<int>(names.index.size())).second) {
    reader_.fail(token, fmt::format("expected {} of a name of its own, '{}' is declared already",
                                    what, printable(token.text, 40)));
  }
  return std::string(token.text);
}

int Parser::resolve(const Names& names, const Token& token, const char* what) {
  auto found = names.index.find(token.text);
  if (found == names.index.end()) {
    reader_.fail(token, fmt::format("expected {} declared above, got '{}'", what,
                                    printable(token.text, 40)));
  }
  return found->second;
}

int Parser::resolve(const Names& names, TokenKind kind, const char* what) {
  return resolve(names, reader_.expect(kind, what), what);
}

SourceLoc Parser::loc(const Token& start) {
  SourceLoc l;
  if (reader_.accept_word("loc")) {
    reader_.expect_mark("(");
    l.file = reader_.string("a file name in quotes");
    reader_.expect_mark(":");
    l.line = reader_.any_integer<int>("a line number");
    reader_.expect_mark(")");
  } else if (missing_locs_ == MissingLocs::kFill) {
    l = {where_, start.line};
  }
  return l;
}

DType Parser::dtype() {
  Token word = reader_.expect(TokenKind::kWord, "a dtype such as bf16");
  try {
    return parse_dtype(word.text);
  } catch (const UserError& e) {
    reader_.fail(word, fmt::format("expected a dtype: {}", e.what()));
  }
}

ValueType Parser::value_type() {
  ValueType type;
  type.dtype = dtype();
  reader_.expect_mark("[");
  type.rows = reader_.any_integer<std::int64_t>("a number of rows");
  reader_.expect_mark(",");
  type.cols = reader_.any_integer<std::int64_t>("a number of columns");
  reader_.expect_mark("]");
  return type;
}

Program Parser::program() {
  header();
  while (!reader_.accept_mark("}")) declaration();
  if (reader_.peek().kind != TokenKind::kEnd) reader_.expected("the end of the text");
  return std::move(program_);
}

void Parser::header() {
  const Token start = reader_.peek();
  reader_.expect_word("program");
  program_.name = reader_.string("the program's name in quotes");
  reader_.expect_word("world");
  program_.world_size = reader_.any_integer<int>("a world size");
  reader_.expect_word("level");
  program_.level = reader_.one_of<Level>(2, "tile or schedule", [](Level l) { return name(l); });
  program_.loc = loc(start);
  reader_.expect_mark("{");
}

void Parser::declaration() {
  const Token start = reader_.peek();
  for (int i = 0; i <= static_cast<int>(VarKind::kLet); ++i) {
    if (reader_.accept_word(name(static_cast<VarKind>(i)))) return var(static_cast<VarKind>(i));
  }
  for (int i = 0; i <= static_cast<int>(TensorKind::kState); ++i) {
    auto kind = static_cast<TensorKind>(i);
    if (reader_.accept_word(name(kind))) return tensor(kind, start);
  }
  if (reader_.accept_word("signal")) return signal(start);
  if (reader_.accept_word("map")) return map(start);
  if (reader_.accept_word("role")) return role(start);
  if (reader_.accept_word("on_start")) {
    program_.on_start = agent(false);
  } else if (reader_.accept_word("on_end")) {
    program_.on_end = agent(false);
  } else {
    reader_.expected("a declaration (a variable, tensor, signal, map or role) or '}'");
  }
}

void Parser::var(VarKind kind) {
  Var v{declare(vars_, TokenKind::kVar, "a variable such as %m"), kind};
  if (kind == VarKind::kScalar && reader_.accept_word("f32")) {
    v.is_float = true;
    v.bound = kFloatScalarBound;
  } else if (reader_.accept_word("bound")) {
    v.bound = reader_.any_integer<std::int64_t>("a bound");
  }
  program_.vars.push_back(std::move(v));
}

void Parser::tensor(TensorKind kind, const Token& start) {
  Tensor t;
  t.kind = kind;
  t.name = declare(tensors_, TokenKind::kTensor, "a tensor such as @a");
  reader_.expect_mark(":");
  t.dtype = dtype();
  t.shape = expr_list("[", "]");
  if (reader_.accept_word("symmetric")) t.space = Space::kSymmetric;
  if (reader_.accept_word("slots")) t.num_slots = reader_.any_integer<int>("a number of slots");
  t.packet = reader_.accept_word("packet");
  if (reader_.accept_word("contract")) {
    t.contract.kind = reader_.one_of<ContractKind>(
        static_cast<int>(ContractKind::kPartition) + 1,
        "none, range, permutation, ascending or partition", [](ContractKind k) { return name(k); });
    if (t.contract.kind != ContractKind::kNone) {
      t.contract.lo = expr();
      reader_.expect_mark(",");
      t.contract.hi = expr();
    }
  }
  if (reader_.accept_word("given_on")) t.given_on = expr();
  t.loc = loc(start);
  program_.tensors.push_back(std::move(t));
}

void Parser::signal(const Token& start) {
  Signal s;
  s.name = declare(signals_, TokenKind::kWord, "a signal");
  reader_.expect_word("channels");
  s.num_channels = reader_.any_integer<std::int64_t>("a number of channels");
  s.per_source = reader_.accept_word("per_source");
  s.loc = loc(start);
  program_.signals.push_back(std::move(s));
}

void Parser::map(const Token& start) {
  TileMap m;
  auto tensor_named = [&](const char* keyword) {
    reader_.expect_word(keyword);
    return resolve(tensors_, TokenKind::kTensor, "a tensor such as @a");
  };
  m.name = declare(maps_, TokenKind::kWord, "a tile map");
  m.tensor = tensor_named("of");
  reader_.expect_word("tile_rows");
  m.tile_rows = reader_.any_integer<std::int64_t>("a number of rows");
  if (reader_.accept_word("rows_per_rank")) m.rows_per_rank = expr();
  if (reader_.accept_word("channels_per_rank")) {
    m.channels_per_rank = reader_.any_integer<std::int64_t>("a number of channels");
  }
  m.table_driven = reader_.accept_word("table");
  if (m.table_driven) {
    reader_.expect_word("tiles");
    m.num_tiles = reader_.any_integer<std::int64_t>("a number of tiles");
    reader_.expect_word("channels");
    m.num_channels = reader_.any_integer<std::int64_t>("a number of channels");
    m.low = tensor_named("low");
    m.high = tensor_named("high");
    m.rank = tensor_named("rank");
    m.channel = tensor_named("channel");
    m.count = tensor_named("count");
  }
  m.loc = loc(start);
  program_.maps.push_back(std::move(m));
}

void Parser::role(const Token& start) {
  Role r;
  r.name = declare(roles_, TokenKind::kWord, "a role");
  r.resource.kind = reader_.one_of<ResourceKind>(static_cast<int>(ResourceKind::kHost) + 1,
                                                 "sms, copy_engine or host",
                                                 [](ResourceKind k) { return name(k); });
  r.resource.num_workers = reader_.any_integer<int>("a number of workers");
  if (reader_.accept_word("cluster")) {
    r.resource.cluster_size = reader_.any_integer<int>("a cluster size");
  }
  if (reader_.accept_word("stages")) {
    r.resource.num_stages = reader_.any_integer<int>("a number of stages");
  }
  if (reader_.accept_word("tickets")) r.resource.tickets = true;
  if (reader_.accept_word("consumers")) {
    r.resource.num_consumers = reader_.any_integer<int>("a number of consumers");
  }
  if (reader_.accept_word("store_slots")) {
    r.resource.store_slots = reader_.any_integer<int>("a number of slots");
  }
  if (reader_.accept_word("load_slots")) {
    r.resource.load_slots = reader_.any_integer<int>("a number of slots");
  }
  if (reader_.accept_word("stagger")) {
    r.resource.stagger = reader_.any_integer<int>("a number of steps");
  }
  if (reader_.accept_word("tile_slots")) {
    r.resource.tile_slots = reader_.any_integer<int>("a number of slots");
  }
  if (reader_.accept_word("products")) {
    r.resource.products = reader_.one_of<ProductOrder>(static_cast<int>(ProductOrder::kAwaited) + 1,
                                                       "ahead, ahead_in_turn, in_turn or awaited",
                                                       [](ProductOrder p) { return name(p); });
  }
  if (reader_.accept_word("beside")) {
    r.resource.beside = resolve(roles_, TokenKind::kWord, "a role declared before");
  }
  reader_.expect_word("tiles");
  r.tile_var = resolve(vars_, TokenKind::kVar, "a variable");
  reader_.expect_mark("<");
  r.num_tiles = expr();
  r.loc = loc(start);
  reader_.expect_mark("{");
  pipes_ = {};
  barriers_ = {};
  Names agents;
  // Pipes name agents that stand below them.
  std::vector<std::pair<Token, Token>> pipe_ends;
  while (!reader_.accept_mark("}")) {
    if (reader_.accept_word("pipe")) {
      pipe(r);
      reader_.expect_word("producer");
      Token producer = reader_.expect(TokenKind::kWord, "an agent");
      reader_.expect_word("consumer");
      pipe_ends.emplace_back(producer, reader_.expect(TokenKind::kWord, "an agent"));
      if (reader_.accept_word("shares")) {
        Token with = reader_.expect(TokenKind::kWord, "a pipe");
        r.pipes.back().shares = resolve(pipes_, with, "a pipe of this role");
      }
    } else if (reader_.accept_word("barrier")) {
      Barrier b;
      b.name = declare(barriers_, TokenKind::kWord, "a barrier");
      reader_.expect_word("arrivals");
      b.num_arrivals = reader_.any_integer<int>("a number of arrivals");
      r.barriers.push_back(std::move(b));
    } else if (reader_.at_word("agent")) {
      reader_.take();
      Token name_token = reader_.peek();
      r.agents.push_back(agent(true));
      if (!agents.index.emplace(name_token.text, static_cast<int>(r.agents.size()) - 1).second) {
        reader_.fail(name_token, "expected an agent of a name of its own");
      }
    } else {
      reader_.expected("a pipe, barrier or agent, or '}'");
    }
  }
  for (std::size_t i = 0; i < pipe_ends.size(); ++i) {
    r.pipes[i].producer = resolve(agents, pipe_ends[i].first, "an agent of this role");
    r.pipes[i].consumer = resolve(agents, pipe_ends[i].second, "an agent of this role");
  }
  pipes_ = {};
  barriers_ = {};
  program_.roles.push_back(std::move(r));
}

void Parser::pipe(Role& role) {
  Pipe p;
  p.name = declare(pipes_, TokenKind::kWord, "a pipe");
  reader_.expect_mark(":");
  p.type = value_type();
  reader_.expect_word("slots");
  p.num_slots = reader_.any_integer<int>("a number of slots");
  reader_.expect_word("swizzle");
  p.swizzle = reader_.one_of<Swizzle>(static_cast<int>(Swizzle::k128B) + 1,
                                      "none, b32, b64 or b128", [](Swizzle s) { return name(s); });
  role.pipes.push_back(std::move(p));
}

// [name] kind ... `body` is both a kind and a fair name, so a name is what another word follows.
Agent Parser::agent(bool named) {
  Agent a;
  auto kind_of = [&](const Token& word, AgentKind& kind) {
    for (int i = 0; i <= static_cast<int>(AgentKind::kEpilogue); ++i) {
      kind = static_cast<AgentKind>(i);
      if (word.text == name(kind)) return true;
    }
    return false;
  };
  Token first = reader_.expect(TokenKind::kWord, named ? "an agent's name" : "an agent's kind");
  bool two_words = reader_.peek().kind == TokenKind::kWord && !reader_.at_word("threads") &&
                   !reader_.at_word("registers");
  if (named || two_words) {
    a.name = first.text;
    Token second = reader_.peek();
    if (second.kind != TokenKind::kWord || !kind_of(second, a.kind)) {
      reader_.expected("body, producer, consumer or epilogue");
    }
    reader_.take();
  } else if (!kind_of(first, a.kind)) {
    reader_.fail(first, "expected body, producer, consumer or epilogue");
  }
  if (reader_.accept_word("threads")) a.num_threads = reader_.any_integer<int>("a thread count");
  if (reader_.accept_word("registers")) {
    a.num_registers = reader_.any_integer<int>("a register count");
  }
  reader_.expect_mark("{");
  if (reader_.accept_word("values")) values(a);
  num_values_ = a.values.size();
  a.body = block(0);
  num_values_ = 0;
  return a;
}

void Parser::values(Agent& agent) {
  do {
    const Token number = reader_.expect(TokenKind::kRegister, "a register such as $0");
    if (number.text != fmt::format("{}", agent.values.size())) {
      reader_.fail(number, fmt::format("expected '${}': registers are numbered in order",
                                       agent.values.size()));
    }
    reader_.expect_mark(":");
    agent.values.push_back(value_type());
  } while (reader_.accept_mark(","));
}

Program parse(std::string_view text, const std::string& where, MissingLocs missing_locs) {
  if (text.size() > kMaxTextBytes) {
    throw UserError(fmt::format("{}: {} bytes of program text, at most {} are read", where,
                                text.size(), kMaxTextBytes));
  }
  return Parser(text, where, missing_locs).program();
}

}  // namespace stretto
