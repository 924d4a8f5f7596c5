#include "stretto/ir/parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/sample_programs.h"
#include "stretto/ir/verifier.h"

namespace stretto::parser_test {
namespace {

// Every program must survive a dump and a reload, or `stretto prove FILE` would prove another one.
TEST(Parser, RandomProgramsRoundTrip) {
  std::uint64_t seed = sample::test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  for (std::uint64_t i = 0; i < 300; ++i) {
    Program p = sample::RandomProgram(seed + i).make();
    std::string text = print(p);
    ASSERT_NO_THROW(verify(p)) << text;
    Program back = parse(text, "text");
    ASSERT_EQ(print(back), text);
    ASSERT_NO_THROW(verify(back)) << text;
  }
}

TEST(Parser, ReadsIndicesBack) {
  Program p = parse(print(sample::tile_program()), "text");
  const Op& copy = p.roles[0].agents[0].body[2];
  EXPECT_EQ(copy.region->tensor, 0);
  EXPECT_TRUE(copy.region->rank.same(Expr::var(5)));
  EXPECT_TRUE(copy.region->origin[0].same(Expr::var(2) % 4 * 32));
  EXPECT_EQ(copy.region2->tensor, 2);
  EXPECT_EQ(copy.loc.line, 9);
  const Op& dot = p.roles[1].agents[0].body[2].bodies[0][3];
  EXPECT_EQ(dot.operands, (std::vector<int>{0, 1, 3}));
}

std::string error_of(const std::string& text) {
  try {
    parse(text, "f.txt");
  } catch (const UserError& e) {
    return e.what();
  }
  return "accepted";
}

std::string in_program(const std::string& body) {
  return "program \"p\" world 1 level schedule {\nrank %rank\n" + body + "\n}";
}
std::string in_body(const std::string& ops) {
  return in_program(
      "tile %t let %x input @a : f32[8, 8] role r sms 1 tiles %t < 1 { agent m body {\n"
      "values $0: f32[1, 1]\n" +
      ops + "\n} }");
}

TEST(Parser, NamesPlaceAndExpectation) {
  EXPECT_EQ(error_of(""), "f.txt:1:1: expected 'program', got the end of the text");
  EXPECT_EQ(error_of("program \"p\" world x"), "f.txt:1:19: expected a world size, got 'x'");
  EXPECT_EQ(error_of("program \"p\" world 99999999999 level tile {}"),
            "f.txt:1:19: expected a world size from -2147483648 to 2147483647, got '99999999999'");
  EXPECT_EQ(error_of("program \"p\" world 1 level tile {} extra"),
            "f.txt:1:35: expected the end of the text, got 'extra'");
  EXPECT_EQ(error_of("program \"p"), "f.txt:1:9: expected a closing quote on this line");
  EXPECT_EQ(error_of("program \"\\q\""),
            "f.txt:1:9: expected only the escapes \\\" \\\\ \\xNN in a string");
  EXPECT_EQ(error_of("program \"p\" ?"), "f.txt:1:13: nothing starts with '?'");
  EXPECT_EQ(error_of("\x80"), "f.txt:1:1: nothing starts with '\\x80'");
  EXPECT_EQ(error_of(in_program("rank %rank")),
            "f.txt:3:6: expected a variable such as %m of a name of its own, 'rank' is declared "
            "already");
  EXPECT_EQ(error_of(in_program("input @a : f33[1]")).substr(0, 30),
            "f.txt:3:12: expected a dtype: ");
  EXPECT_EQ(error_of(in_program("input @a : f32[%m]")),
            "f.txt:3:16: expected a var declared above, got 'm'");
  EXPECT_EQ(error_of(in_body("jump")), "f.txt:5:1: expected the name of an operation, got 'jump'");
  // Words of the builder that stand for others.
  for (const char* word : {"tile_push_data", "tile_pull_data", "peer_tile_notify", "peer_tile_wait",
                           "rank_notify", "rank_wait", "signal_op", "put", "barrier"}) {
    EXPECT_EQ(error_of(in_body(word)),
              fmt::format("f.txt:5:1: expected the name of an operation, got '{}'", word));
  }
  EXPECT_EQ(error_of(in_body("fill 1")),
            "f.txt:5:1: expected a register and '=' before this operation, got 'fill'");
  EXPECT_EQ(error_of(in_body("$0 = fence")),
            "f.txt:5:6: expected an operation that writes a register, got 'fence'");
  EXPECT_EQ(error_of(in_body("$1 = fill 1")),
            "f.txt:5:1: expected a register declared under 'values', got '$1'");
  EXPECT_EQ(error_of(in_body("$0 = fill 1e999")),
            "f.txt:5:11: expected a number that a double can hold, got '1e999'");
  EXPECT_EQ(error_of(in_body("let %x = 9223372036854775807 + 1")),
            "f.txt:5:30: expected constants whose result fits 64 bits");
  EXPECT_EQ(error_of(in_body("let %x = 1 < 2 < 3")),
            "f.txt:5:16: expected an operation or '}', got '<'");
  EXPECT_EQ(error_of(in_body("pipe_get q")),
            "f.txt:5:1: expected a register and '=' before this operation, got 'pipe_get'");
  EXPECT_EQ(
      error_of(in_body("when 1 {")),
      "f.txt:7:2: expected a declaration (a variable, tensor, signal, map or role) or '}', got "
      "the end of the text");
}

TEST(Parser, DepthAndSizeAreBounded) {
  auto repeat = [](const std::string& s, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += s;
    return out;
  };
  EXPECT_NE(error_of(in_body("let %x = " + repeat("(", 100'000))).find("nested at most 400 deep"),
            std::string::npos);
  EXPECT_NE(error_of(in_body("let %x = " + repeat("!", 100'000))).find("nested at most 400 deep"),
            std::string::npos);
  EXPECT_NE(error_of(in_body("let %x = %t" + repeat(" + %t", 100'000))).find("at most 400 deep"),
            std::string::npos);
  EXPECT_NE(error_of(in_body(repeat("when 1 {", 100'000))).find("blocks nested at most 64 deep"),
            std::string::npos);
  EXPECT_NE(error_of(std::string(kMaxTextBytes + 1, ' ')).find("bytes of program text"),
            std::string::npos);
  EXPECT_EQ(error_of(in_body("let %x = %t" + repeat(" + %t", 399))), "accepted");
}

TEST(Parser, FillsMissingLocsFromTheText) {
  std::string text = in_body("$0 = fill 1\n// a comment\nfence loc(\"user.cc\":9)");
  Program p = parse(text, "f.txt", MissingLocs::kFill);
  EXPECT_EQ(p.loc.line, 1);
  EXPECT_EQ(p.roles[0].agents[0].body[0].loc.file, "f.txt");
  EXPECT_EQ(p.roles[0].agents[0].body[0].loc.line, 5);
  EXPECT_EQ(p.roles[0].agents[0].body[1].loc.file, "user.cc");
  EXPECT_EQ(parse(text, "f.txt").roles[0].agents[0].body[0].loc.line, 0);
}

// Damaged text must end in a UserError, never in a crash or another program that prints otherwise.
TEST(Parser, DamagedTextIsRefusedOrStable) {
  std::uint64_t seed = sample::test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 rng(seed);
  for (const Program& p : {sample::tile_program(), sample::schedule_program()}) {
    const std::string original = print(p);
    for (int i = 0; i < 2000; ++i) {
      std::string text = original;
      std::size_t at = rng() % text.size();
      switch (rng() % 3) {
        case 0:
          text.erase(at, 1 + rng() % 8);
          break;
        case 1:
          text[at] = static_cast<char>(rng());
          break;
        default:
          text.insert(at, text.substr(rng() % text.size(), rng() % 16));
      }
      try {
        Program read = parse(text, "f.txt");
        ASSERT_EQ(print(parse(print(read), "f.txt")), print(read));
        verify(read);
      } catch (const UserError&) {
      }
    }
  }
}

}  // namespace
}  // namespace stretto::parser_test
