// Tiles by ticket as CUDA text: who draws, and how many warps are told. If these fail, threads that
// load beside an issuer take other tiles than the rest of their worker, or a worker waits for ever
// for a warp that nobody counts.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::ticket_text_test {
namespace {

enum class Loads : std::uint8_t { kByTma, kBesideTma, kByThreads };

// c = a * b^T, with what makes loads go one way or the other: nothing, a scale for each row of a
// step, rows of an odd size.
GeneratedKernel products(Loads loads) {
  const std::int64_t k = loads == Loads::kByThreads ? 255 : 256;
  ProgramBuilder p("products", 1);
  auto a = p.input("a", DType::kBF16, {512, k});
  auto b = p.input("b", DType::kBF16, {512, k});
  auto scale = p.input("scale", DType::kF32, {512, 4});
  auto c = p.output("c", DType::kF32, {512, 512});
  Resource sms = Resource::sms(4).pipelined(3).by_ticket(true);
  p.role("gemm", sms, p.grid(c, 128, 128), [&](const Tile& t) {
    Value sum = p.zeros(DType::kF32, 128, 128);
    p.loop(4, [&](const Index& i) {
      Value left = p.load(a.tile({t.row, i * 64}, 128, 64));
      Value right = p.load(b.tile({t.col, i * 64}, 128, 64)).T();
      if (loads != Loads::kBesideTma) return void(sum = dot(sum, left, right));
      Value of_rows = p.load(scale.tile({t.row, i}, 128, 1));
      sum = sum + dot(p.zeros(DType::kF32, 128, 128), left, right) * of_rows;
    });
    p.store(c.tile({t.row, t.col}, 128, 128), sum);
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_clean_build(kernel);
  return kernel;
}

TEST(TicketText, TheIssuerDrawsForTheConsumers) {
  expect_lines(products(Loads::kByTma).source,
               {"ticket_ring_init(smem + ", ", 8);", "// producer", "elect_one()",
                "draw_ticket(p.control + 3, 4);", "publish_ticket(tickets,", "// consumer",
                "= read_ticket(tickets, team);"});
}

TEST(TicketText, ThreadsThatLoadBesideTheIssuerAreTold) {
  std::string text = products(Loads::kBesideTma).source;
  expect_lines(text, {"ticket_ring_init(smem + ", ", 11);", "// producer", "elect_one()",
                      "draw_ticket(p.control + 3, 4);", "publish_ticket(tickets,", "!= 8) {",
                      "TicketRing tickets", "= read_ticket(tickets, team);", "fill_slot<",
                      "// consumer", "= read_ticket(tickets, team);"});
  EXPECT_EQ(text.find("draw_ticket"), text.rfind("draw_ticket")) << text;
}

TEST(TicketText, WhereNoThreadIssuesTheFirstThatLoadsDraws) {
  std::string text = products(Loads::kByThreads).source;
  expect_lines(text, {"ticket_ring_init(smem + ", ", 12);", "// producer", "if (team.tid == 0) {",
                      "draw_ticket(p.control + 3, 4)", "publish_ticket(writer,",
                      "= read_ticket(tickets, team);", "fill_slot<", "// consumer",
                      "= read_ticket(tickets, team);"});
  EXPECT_EQ(text.find("draw_ticket"), text.rfind("draw_ticket")) << text;
}

}  // namespace
}  // namespace stretto::ticket_text_test
