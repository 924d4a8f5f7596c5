// The rules of tensor maps: the driver answers every broken one with "invalid argument".
#include "stretto/runtime/cuda/tensor_map.h"

#include <gtest/gtest.h>

#include <functional>

#include "stretto/base/errors.h"

namespace stretto::cuda {
namespace {

TensorMapDesc good() {
  return {.dtype = DType::kBF16,
          .address = 1024,
          .shape = {300, 4096},
          .strides = {},
          .box = {128, 64},
          .swizzle = Swizzle::k128B};
}

TEST(TensorMapRules, AcceptsWhatKernelsUse) {
  EXPECT_NO_THROW(check_tensor_map(good()));
  TensorMapDesc strided = good();
  strided.strides = {8192, 1};
  EXPECT_NO_THROW(check_tensor_map(strided));
  EXPECT_NO_THROW(check_tensor_map({.dtype = DType::kF8E4M3,
                                    .address = 16,
                                    .shape = {2, 3, 5, 7, 128},
                                    .box = {1, 1, 1, 7, 128},
                                    .swizzle = Swizzle::k128B}));
  EXPECT_NO_THROW(check_tensor_map({.dtype = DType::kF32, .address = 0, .shape = {5}, .box = {4}}));
}

TEST(TensorMapRules, NamesTheRuleThatIsBroken) {
  struct Case {
    const char* says;
    std::function<void(TensorMapDesc&)> edit;
  };
  std::vector<Case> cases = {
      {"1 to 5 dimensions", [](TensorMapDesc& d) { d.shape = {}; }},
      {"1 to 5 dimensions", [](TensorMapDesc& d) { d.shape = {1, 1, 1, 1, 1, 64}; }},
      {"the box has", [](TensorMapDesc& d) { d.box = {64}; }},
      {"one stride", [](TensorMapDesc& d) { d.strides = {1}; }},
      {"extents", [](TensorMapDesc& d) { d.shape[0] = 0; }},
      {"box extents", [](TensorMapDesc& d) { d.box[0] = 257; }},
      {"box extents", [](TensorMapDesc& d) { d.box[0] = 0; }},
      {"address", [](TensorMapDesc& d) { d.address = 8; }},
      {"innermost stride",
       [](TensorMapDesc& d) {
         d.strides = {4096, 2};
       }},
      {"multiples of 16",
       [](TensorMapDesc& d) {
         d.strides = {4097, 1};
       }},
      {"multiples of 16", [](TensorMapDesc& d) { d.shape[1] = 4095; }},
      {"below 2^40",
       [](TensorMapDesc& d) {
         d.strides = {std::int64_t{1} << 41, 1};
       }},
      {"multiple of 16", [](TensorMapDesc& d) { d.box[1] = 4; }},
      {"swizzle's span", [](TensorMapDesc& d) { d.box[1] = 128; }},
      {"swizzle's span", [](TensorMapDesc& d) { d.swizzle = Swizzle::k64B; }},
  };
  for (const Case& c : cases) {
    TensorMapDesc desc = good();
    c.edit(desc);
    try {
      check_tensor_map(desc);
      ADD_FAILURE() << "accepted: " << desc.to_string();
    } catch (const InternalError& e) {
      EXPECT_NE(std::string(e.what()).find(c.says), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace stretto::cuda
