// Products with collectives as they run: fused, or as collective and product one after the other,
// in the config that was measured to be the fastest on these GPUs, or else is predicted to be
// (ops/choose). Comes before programs.cc, which offers them to Python.
#pragma once

#include <string>
#include <vector>

#include "fields.h"
#include "stretto/ops/ag_gemm/ag_columns_gemm.h"
#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gemm_ag/gemm_ag.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"
#include "stretto/predict/machine.h"

namespace stretto::python {

enum class Products {
  kDefault,   // fused, in the default config
  kFused,     // fused, on GPUs in the chosen config
  kFastest,   // on GPUs whichever takes less time; on CPU ranks fused
  kSequence,  // one after the other, on GPUs in chosen configs; fused with scales or on one rank
};
const char* name(Products products);  // "default"

struct Asked {
  Products products = Products::kDefault;
  Target target = Target::kCpu;
  std::string measured_on;  // names the GPUs, for choices that were measured; empty: none are read
};

// A way to run a product.
struct Offer {
  std::string config;             // names it among those of its desc
  std::vector<Program> programs;  // one, or the two of a sequence, collective and gemm, in order
  double predicted_ms = 0;        // 0: was not asked for
};

// Of a GemmDesc, AgGemmDesc, AgColumnsDesc, GemmAgDesc, GemmRsDesc or GemmArDesc. The first, third
// and fourth have no sequence: what is asked for as one is the caller's.
template <typename Desc>
class ProductChoice {
 public:
  ProductChoice(const Desc& desc, const Asked& asked);

  // How it runs: as keep() has it, else as predicted for this machine's GPUs as they were
  // calibrated, or for H200s. Ranked once per desc: the choice is kept on disk, and is the same in
  // every process. Up to some seconds. The default config where nothing can be predicted. UserError
  // naming the field of a bad desc.
  Offer chosen() const;
  // What is worth measuring: what prediction chooses, then so many others as are predicted to be
  // the fastest, and the sequence. One where there is no choice: on CPU ranks, by default, as a
  // sequence, and on one rank.
  std::vector<Offer> offers(int most_fused) const;
  // chosen() is this one of offers() from now on, in every process that asks alike. Does nothing
  // where the cache cannot be written.
  void keep(const std::string& config, double ms) const;

 private:
  Offer chosen_as(const std::string& measured_on) const;  // where empty, as predicted
  bool can_sequence() const;
  bool has_choice() const;
  OpCandidates candidates() const;
  ChooseOptions options(const std::string& measured_on) const;
  Offer by_default() const;
  Offer in_sequence(double predicted_ms = 0) const;
  Offer offer_of(const ConfigChoice& choice, const OpCandidates& all) const;

  Desc desc_;
  Asked asked_;
  predict::Machine machine_;
};

extern template class ProductChoice<GemmDesc>;
extern template class ProductChoice<AgGemmDesc>;
extern template class ProductChoice<AgColumnsDesc>;
extern template class ProductChoice<GemmAgDesc>;
extern template class ProductChoice<GemmRsDesc>;
extern template class ProductChoice<GemmArDesc>;

// The last field, `products`: "default", "fused", "fastest" or "sequence". InternalError for
// others.
Products take_products(Fields& fields);

}  // namespace stretto::python
