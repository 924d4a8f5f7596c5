#include "attention_programs.h"

#include "fields.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace nb = nanobind;

namespace stretto::python {

void bind_attention(nb::module_& m) {
  bind_operator(m, "attention", attention, default_config);
  bind_operator(m, "sequence_attention", sequence_attention, default_config);
  bind_operator(m, "ring_attention", ring_attention, default_ring_config);
  bind_operator(m, "token_ring", token_ring, default_token_ring_config);
  bind_operator(m, "flash_decode", flash_decode, default_config);
  bind_operator(m, "packed_attention", packed_attention, default_config);
  bind_operator(m, "paged_attention", paged_attention, default_config);
  bind_operator(m, "paged_decode", paged_decode, default_config);
  bind_operator(m, "gemm_a2a", gemm_a2a, default_gemm_a2a_config);
  bind_operator(m, "a2a_gemm", a2a_gemm, default_a2a_gemm_config);
}

}  // namespace stretto::python
