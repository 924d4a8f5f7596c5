#include "attention_programs.h"

#include <nanobind/stl/string.h>

#include "programs.h"
#include "stretto/base/errors.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace nb = nanobind;

namespace stretto::python {

// Sizes in the order of the Python side, python/stretto/attention.py.
void bind_attention(nb::module_& m) {
  m.def("sequence_attention",
        [](const std::string& form, int ranks, const std::string& dtype, std::int64_t tokens,
           int heads, int kv_heads, std::int64_t head_dim, bool causal, double scale, bool lse,
           bool gpu) {
          SequenceAttentionDesc d{.dtype = parse_dtype(dtype),
                                  .m = tokens,
                                  .num_heads = heads,
                                  .num_kv_heads = kv_heads,
                                  .head_dim = head_dim,
                                  .causal = causal,
                                  .scale = scale,
                                  .lse = lse,
                                  .world_size = ranks};
          if (form == "gathered") return sequence_attention(d, default_config(d, target(gpu)));
          if (form == "ring") return ring_attention(d, default_ring_config(d, target(gpu)));
          return token_ring(d, default_token_ring_config(d, target(gpu)));
        });
  m.def("flash_decode", [](int ranks, const std::string& dtype, std::int64_t rows,
                           std::int64_t tokens, std::int64_t block, int heads, int kv_heads,
                           std::int64_t head_dim, double scale, bool gpu) {
    FlashDecodeDesc d{.dtype = parse_dtype(dtype),
                      .m = rows,
                      .max_tokens = tokens,
                      .block = block,
                      .num_heads = heads,
                      .num_kv_heads = kv_heads,
                      .head_dim = head_dim,
                      .scale = scale,
                      .world_size = ranks};
    return flash_decode(d, default_config(d, target(gpu)));
  });
  // page 0: keys lie like queries.
  m.def("packed_attention",
        [](const std::string& dtype, std::int64_t rows, std::int64_t sequences, std::int64_t page,
           std::int64_t num_pages, std::int64_t tokens, int heads, int kv_heads,
           std::int64_t head_dim, bool causal, double scale, bool lse, bool gpu) {
          PackedAttentionDesc d{.dtype = parse_dtype(dtype),
                                .m = rows,
                                .sequences = sequences,
                                .page = page,
                                .num_pages = num_pages,
                                .max_tokens = tokens,
                                .num_heads = heads,
                                .num_kv_heads = kv_heads,
                                .head_dim = head_dim,
                                .causal = causal,
                                .scale = scale,
                                .lse = lse};
          PackedAttentionConfig config = default_config(d, target(gpu));
          return page > 0 ? paged_attention(d, config) : packed_attention(d, config);
        });
  m.def("paged_decode", [](const std::string& dtype, std::int64_t rows, std::int64_t page,
                           std::int64_t num_pages, std::int64_t tokens, int heads, int kv_heads,
                           std::int64_t head_dim, double scale, bool lse, bool gpu) {
    PagedDecodeDesc d{.dtype = parse_dtype(dtype),
                      .m = rows,
                      .page = page,
                      .num_pages = num_pages,
                      .max_tokens = tokens,
                      .num_heads = heads,
                      .num_kv_heads = kv_heads,
                      .head_dim = head_dim,
                      .scale = scale,
                      .lse = lse};
    return paged_decode(d, default_config(d, target(gpu)));
  });
  auto ulysses = [](int ranks, const std::string& dtype, std::int64_t m, std::int64_t n,
                    std::int64_t k, bool bias) {
    return UlyssesDesc{.world_size = ranks,
                       .m = m,
                       .n = n,
                       .k = k,
                       .dtype = parse_dtype(dtype),
                       .weight_dtype = parse_dtype(dtype),
                       .bias = bias};
  };
  m.def("gemm_a2a", [=](int ranks, const std::string& dtype, std::int64_t rows, std::int64_t n,
                        std::int64_t k, bool bias, bool gpu) {
    UlyssesDesc d = ulysses(ranks, dtype, rows, n, k, bias);
    return gemm_a2a(d, default_gemm_a2a_config(d, target(gpu)));
  });
  m.def("a2a_gemm", [=](int ranks, const std::string& dtype, std::int64_t rows, std::int64_t n,
                        std::int64_t k, bool bias, bool gpu) {
    UlyssesDesc d = ulysses(ranks, dtype, rows, n, k, bias);
    return a2a_gemm(d, default_a2a_gemm_config(d, target(gpu)));
  });
}

}  // namespace stretto::python
