#include "stretto/executor/kernels/dot_native.h"

#include <array>
#include <dnnl.hpp>
#include <map>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dispatch.h"

// oneDNN of the distribution runs on OpenMP. One thread per team, set per calling thread, means
// that it starts none. Declared here because not every compiler ships omp.h.
extern "C" void omp_set_num_threads(int num_threads);

namespace stretto::kernels {
namespace {

using dnnl::memory;
using Key = std::array<std::int64_t, 9>;

// What a thread keeps between calls: oneDNN compiles a product for its shape and strides.
struct Products {
  Products() { omp_set_num_threads(1); }
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, dnnl::matmul> by_shape;
};

constexpr std::size_t kMaxProducts = 256;  // run-time extents make new shapes without end

// The stride over a single row or column means nothing to us and something to oneDNN.
memory::desc describe(const ConstTileRef& t, memory::data_type type) {
  bool by_rows = t.col_stride == 1 || t.cols == 1;
  memory::dim row = by_rows ? (t.rows == 1 ? t.cols : t.row_stride) : 1;
  memory::dim col = by_rows ? 1 : (t.cols == 1 ? t.rows : t.col_stride);
  return {{t.rows, t.cols}, type, memory::dims{row, col}};
}

const dnnl::matmul& product(Products& products, const DotArgs& args) {
  const TileRef& c = args.acc;
  Key key{c.rows,
          c.cols,
          args.a.cols,
          args.a.row_stride,
          args.a.col_stride,
          args.b.row_stride,
          args.b.col_stride,
          c.row_stride,
          args.accumulate};
  auto found = products.by_shape.find(key);
  if (found != products.by_shape.end()) return found->second;
  if (products.by_shape.size() >= kMaxProducts) products.by_shape.clear();
  dnnl::primitive_attr attr;
  if (args.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  dnnl::matmul::desc desc(describe(args.a, memory::data_type::bf16),
                          describe(args.b, memory::data_type::bf16),
                          describe(c, memory::data_type::f32));
  dnnl::matmul made(dnnl::matmul::primitive_desc(desc, attr, products.engine));
  return products.by_shape.emplace(key, made).first->second;
}

}  // namespace

bool has_native_bf16() {
  static const bool has = [] {
    dnnl_set_verbose(0);  // whatever ONEDNN_VERBOSE says: standard output is for results
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa == dnnl_cpu_isa_avx512_core_bf16 || isa == dnnl_cpu_isa_avx512_core_amx;
  }();
  return has && use_avx2();
}

void dot_native_bf16(const DotArgs& args) {
  static thread_local Products products;
  try {
    auto at = [&](const ConstTileRef& t, memory::data_type type) {
      return memory(describe(t, type), products.engine, const_cast<void*>(t.data));
    };
    product(products, args)
        .execute(products.stream, {{DNNL_ARG_SRC, at(args.a, memory::data_type::bf16)},
                                   {DNNL_ARG_WEIGHTS, at(args.b, memory::data_type::bf16)},
                                   {DNNL_ARG_DST, at(args.acc, memory::data_type::f32)}});
    products.stream.wait();
  } catch (const dnnl::error& e) {
    throw InternalError(std::string("oneDNN refused a bf16 product: ") + e.what());
  }
}

}  // namespace stretto::kernels
