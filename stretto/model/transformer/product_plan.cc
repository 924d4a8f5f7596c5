#include "stretto/model/transformer/product_plan.h"

#include <algorithm>

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
  quantizers_.push_back({r.buffer, plan_.programs.size()});
  plan_.programs.push_back(step_program(d, s_.target));
  const std::int64_t rows = r.tokens * r.rows_per_token;
  auto add = [&](const std::string& name, DType dtype, std::int64_t cols) {
    plan_.buffers.push_back(
        {.name = name, .dtype = dtype, .rows = rows, .cols = cols, .symmetric = r.symmetric});
  };
  add(quantized(r.buffer), DType::kF8E4M3, r.cols);
  add(scales_buffer(r.buffer), DType::kF32, ceil_div(r.cols, kWeightBlock));
}

void ProductPlan::quantize(const char* buffer, Rows rows, const std::vector<std::int64_t>& fixed) {
  if (!s_.config->has_fp8_products()) return;
  auto found = std::find_if(quantizers_.begin(), quantizers_.end(),
                            [&](const Quantizer& q) { return q.buffer == buffer; });
  STRETTO_CHECK(found != quantizers_.end(), std::string("nothing quantises ") + buffer);
  plan_.launches.push_back(
      {.program = found->program,
       .rows = rows,
       .bindings = {{"x", buffer}, {"out", quantized(buffer)}, {"scales", scales_buffer(buffer)}},
       .fixed = fixed});
}

void ProductPlan::bind_rows(const char* buffer, std::vector<Binding>& to) const {
  if (!s_.config->has_fp8_products()) return to.push_back({"a", buffer});
  to.push_back({"a", quantized(buffer)});
  to.push_back({"scale_a", scales_buffer(buffer)});
}

void ProductPlan::bind_weight(Weight which, const std::string& buffer,
                              std::vector<Binding>& to) const {
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
