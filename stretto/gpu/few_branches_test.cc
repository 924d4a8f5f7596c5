// What every wait, and every table's entries, have in a kernel, as PTX. Who loses this waits longer
// for each first call: what compiling takes goes by branches.
#include <gtest/gtest.h>

#include <string>

#include "stretto/device/device_sources.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {
namespace {

int num_branches(const std::string& ptx) {
  int count = 0;
  for (std::size_t at = 0; (at = ptx.find("bra", at)) != std::string::npos; ++at) ++count;
  return count;
}

// The PTX of a kernel with this body; empty where GPUs are simulated, which have none.
std::string ptx_of(const std::string& body) {
  std::string text = expand_includes(
      "#include \"stretto/device/sm90/global.h\"\n#include \"stretto/device/sm90/signal.h\"\n"
      "extern \"C\" __global__ void k(const __grid_constant__ Watch w, i32* a, i32* b, i32 rows,\n"
      "                             i32 cols) {\n" +
      body + "}\n");
  std::string ptx = cuda::compile_ptx(text, "k.cu", {});
  return ptx.find(".entry") == std::string::npos ? "" : ptx;
}

class FewBranches : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
    if (ptx_of("").empty()) GTEST_SKIP() << "simulated";
  }
};

TEST_F(FewBranches, AFaultIsReportedInOnePiece) {
  EXPECT_EQ(num_branches(ptx_of("report_fault(w, 1, rows, 3, cols);")), 0);
}

// A tile's columns lie three elements apart, or `run` side by side.
std::string ptx_of_store(int run) {
  return ptx_of(
      "Tile<i32, 4, 4> v;\nusing L = RowLayout<32, 128, 256, 32, 4>;\n"
      "const Team team{threadIdx.x, 1};\niota_cols<L>(v, team, *a);\n"
      "store_box<L, " +
      std::to_string(run) + ">(v, Box<i32>{b, 4096, " + (run == 1 ? "3" : "1") +
      ", rows, cols}, team);\n");
}

TEST_F(FewBranches, EntriesOfTablesAreStoredWhereTheyExist) {
  std::string ptx = ptx_of_store(1);
  EXPECT_EQ(num_branches(ptx), 0);
  EXPECT_NE(ptx.find("st.global.b32"), std::string::npos);
  EXPECT_GT(num_branches(ptx_of_store(4)), 0) << "runs, which have a branch each";
}

}  // namespace
}  // namespace stretto
