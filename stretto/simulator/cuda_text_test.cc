// CUDA's text as text of the host: what each form of an asm statement becomes.
#include "stretto/simulator/cuda_text.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace stretto::simulator {
namespace {

TEST(CudaText, InstructionsBecomeCalls) {
  EXPECT_EQ(instructions_text("bar.sync %0, %1;"), "ptx::bar_sync(o0, o1); ");
  EXPECT_EQ(instructions_text("mov.u64 %0, %%globaltimer;"),
            "ptx::mov_u64(o0, ptx::sim_globaltimer()); ");
  EXPECT_EQ(instructions_text("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"),
            "ptx::ld_relaxed_sys_global_v2_u64(ptx::sim_list(o0, o1), o2); ");
  EXPECT_EQ(instructions_text("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];"),
            "ptx::mbarrier_arrive_release_cta_shared__cta_b64(ptx::SimSink{}, o0); ");
}

TEST(CudaText, BlocksHaveRegistersAndPredicates) {
  EXPECT_EQ(instructions_text("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0x7f;\n"
                              "@p st.shared.u32 [%1], %0;\n}"),
            "bool p{}; ptx::setp_eq_u32(p, o0, 0x7f); if (p) ptx::st_shared_u32(o1, o0); ");
  EXPECT_EQ(instructions_text("{.reg .b32 lane;\nelect.sync lane|p, 0xffffffff;}"),
            "uint32_t lane{}; ptx::elect_sync(lane, p, 0xffffffff); ");
}

TEST(CudaText, AProductSaysItsShape) {
  EXPECT_EQ(
      instructions_text("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                        "{%0, %1, %2, %3}, %4, %5, p, 1, 1, %6, %7;"),
      "ptx::sim_wgmma<8, 16, sim::Factor::kBF16>(ptx::sim_list(o0, o1, o2, o3), o4, o5, p, 1, "
      "1, o6, o7); ");
  EXPECT_THROW(instructions_text("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 %0;"),
               std::invalid_argument);
}

TEST(CudaText, StatementsBindTheirOperands) {
  std::string text = host_text(
                         "void f() { asm volatile(\"bar.\" // why\n \"sync %1, %0;\" :: "
                         "\"r\"(g(1, 2)), \"n\"(kId) : \"memory\"); }")
                         .text;
  EXPECT_NE(text.find("do { const auto o0 = (g(1, 2)); const auto o1 = (kId); "
                      "ptx::bar_sync(o1, o0); } while (0); }"),
            std::string::npos)
      << text;
  EXPECT_NE(host_text("asm volatile(\"\" : \"+r\"(v)::\"memory\");").text.find("do {} while (0);"),
            std::string::npos);
  EXPECT_NE(host_text("int asmx = 1, asm_ = 2;").text.find("int asmx = 1, asm_ = 2;"),
            std::string::npos);
  EXPECT_THROW(host_text("asm volatile(\"bar.sync 0;\""), std::invalid_argument);
}

TEST(CudaText, KernelsGetAnEntry) {
  HostText host = host_text(
      "extern \"C\" __global__ void __launch_bounds__(384, 1) k(\n    const __grid_constant__ "
      "Params p) {\n  extern __shared__ __align__(1024) u8 smem[];\n  __shared__ bool last;\n}\n"
      "extern \"C\" __global__ void two(unsigned* x, int n) {}\n");
  ASSERT_EQ(host.kernels.size(), 2u);
  EXPECT_EQ(host.kernels[0].name, "k");
  EXPECT_EQ(host.kernels[0].max_threads, 384);
  EXPECT_EQ(host.kernels[1].max_threads, 1024);
  for (const char* part :
       {"k(\n    const Params& p) {",
        "u8* const smem = reinterpret_cast<u8*>(sim::indices->shared);",
        "k(*static_cast<const Params*>(arguments[0]))", "= {sizeof(const Params), 0}",
        "two(*static_cast<unsigned**>(arguments[0]), *static_cast<const int*>(arguments[1]))",
        "using SimType_last = bool;", "SimType_last& last = "}) {
    EXPECT_NE(host.text.find(part), std::string::npos) << part << "\n" << host.text;
  }
}

}  // namespace
}  // namespace stretto::simulator
