#include "stretto/model/transformer/product_plan.h"

#include <algorithm>
#include <utility>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/model/transformer/step_programs.h"
#include "stretto/model/transformer/weights.h"

namespace stretto {
namespace {

std::string quantized(const std::string& buffer) { return buffer + "_e4m3"; }

}  // namespace

void ProductPlan::prepare(const Factor& r) {
  if (!s_.config->has_fp8_products()) return;
  QuantizeDesc d{.dtype = s_.dtype,
                 .m = r.tokens,
                 .rows_per_token = r.rows_per_token,
                 .k = r.cols,
                 .symmetric_output = r.symmetric,
                 .world_size = r.world_size > 0 ? r.world_size : s_.world_size};
  quantizers_.push_back({r.buffer, plan_.program(step_program(d, s_.target))});
  const std::int64_t rows = r.tokens * r.rows_per_token;
  auto add = [&](const std::string& name, DType dtype, std::int64_t cols) {
    r.symmetric ? plan_.symmetric(name, dtype, {rows, cols})
                : plan_.buffer(name, dtype, {rows, cols});
  };
  add(quantized(r.buffer), DType::kF8E4M3, r.cols);
  add(scales_buffer(r.buffer), DType::kF32, ceil_div(r.cols, kWeightBlock));
}

void ProductPlan::quantize(const char* buffer, StepBuilder::Sizes sizes) {
  if (!s_.config->has_fp8_products()) return;
  auto found = std::find_if(quantizers_.begin(), quantizers_.end(),
                            [&](const Quantizer& q) { return q.buffer == buffer; });
  STRETTO_CHECK(found != quantizers_.end(), std::string("nothing quantises ") + buffer);
  plan_.launch(found->program, std::move(sizes),
               {{"x", buffer}, {"out", quantized(buffer)}, {"scales", scales_buffer(buffer)}});
}

void ProductPlan::bind_rows(const char* buffer, StepBuilder::Bindings& to) const {
  if (!s_.config->has_fp8_products()) return to.push_back({"a", buffer});
  to.push_back({"a", quantized(buffer)});
  to.push_back({"scale_a", scales_buffer(buffer)});
}

void ProductPlan::bind_weight(Weight which, const std::string& buffer,
                              StepBuilder::Bindings& to) const {
  struct Names {
    const char *weight, *scales;
  };
  const Names names = which == Weight::kGate ? Names{"b_gate", "scale_b_gate"}
                      : which == Weight::kUp ? Names{"b_up", "scale_b_up"}
                                             : Names{"b", "scale_b"};
  to.push_back({names.weight, buffer});
  if (s_.config->has_fp8_products()) to.push_back({names.scales, scales_buffer(buffer)});
}

}  // namespace stretto
