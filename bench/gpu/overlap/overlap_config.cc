#include "bench/gpu/overlap/overlap_config.h"

#include <algorithm>
#include <set>

#include "stretto/base/errors.h"

namespace stretto::bench {
namespace {

template <typename Desc, typename Config>
OverlapCandidate made(const char* family, const Desc& desc, const Config& config,
                      Program (*make)(const Desc&, const Config&)) {
  OverlapCandidate out{.family = family, .config = to_string(config)};
  try {
    out.program = make(desc, config);
  } catch (const Error& e) {
    out.error = e.what();
  }
  return out;
}

// The config that `take` makes of one: what the text does not name is made to fit the shape, what
// it names is the operator's to refuse.
template <typename Desc, typename Config, typename Take>
Config taken(const Desc& desc, const Config& config, const Take& take) {
  return take(fitted(desc, take(config)));
}

// One that has the words of the text which say how an operator goes about it, before its default is
// asked for.
template <typename Config>
Config first_read(Config config, const std::string& text) {
  read_config(text, fields_of(config));
  return config;
}

OverlapCandidate ag_gemm_of(const OverlapShape& s, int sms, const std::string& text) {
  AgGemmDesc desc = ag_gemm_desc(s);
  const Gather gather = first_read(AgGemmConfig{.gather = Gather::kSend}, text).gather;
  auto take = [&](AgGemmConfig c) {
    std::set<std::string> named = read_config(text, fields_of(c));
    if (!named.contains("compute")) {
      c.loop.num_compute_sms = gather == Gather::kPush ? sms - c.num_gather_workers : sms;
    }
    return c;
  };
  AgGemmConfig c = taken(desc, default_config(desc, Target::kCuda, gather), take);
  return made(name(gather), desc, c, ag_gemm);
}

OverlapCandidate gemm_rs_of(const OverlapShape& s, int sms, const std::string& text) {
  GemmRsDesc desc = gemm_rs_desc(s);
  auto take = [&](GemmRsConfig c) {
    std::set<std::string> named = read_config(text, fields_of(c));
    bool engine = c.scatter == Scatter::kCopyEngine;
    if (!named.contains("compute")) {  // one rings for the engine
      c.loop.num_compute_sms = sms - c.num_reduce_sms - (engine ? 1 : 0);
    }
    if (!named.contains("slots")) c.num_slots = engine ? 1 : 2;
    return c;
  };
  GemmRsConfig c = taken(desc, default_config(desc, Target::kCuda), take);
  return made(c.scatter == Scatter::kCopyEngine ? "copy" : "epilogue", desc, c, gemm_rs);
}

OverlapCandidate gemm_ar_of(const OverlapShape& s, int sms, const std::string& text) {
  GemmArDesc desc = gemm_ar_desc(s);
  GemmArConfig usual{.shots = default_config(desc, Target::kCuda).shots};
  const ReduceShots shots = first_read(usual, text).shots;
  auto take = [&](GemmArConfig c) {
    std::set<std::string> named = read_config(text, fields_of(c));
    if (!named.contains("packets")) c.packets = false;
    bool engine = c.scatter == Scatter::kCopyEngine, few = shots != ReduceShots::kTwo;
    std::int64_t tiles = ceil_div(desc.m, c.loop.tile.bm) * ceil_div(desc.n, c.loop.tile.bn);
    if (!named.contains("channels") && few) c.channels = tiles;
    if (!named.contains("compute")) {
      c.loop.num_compute_sms = sms - c.num_reduce_sms - (engine ? 1 : 0);
      if (few) {
        c.loop.num_compute_sms =
            static_cast<int>(std::min(std::int64_t{c.loop.num_compute_sms}, tiles * c.split_k));
      }
    }
    if (!named.contains("slots")) c.num_slots = engine ? 1 : 2;
    return c;
  };
  GemmArConfig c = taken(desc, default_config(desc, shots, Target::kCuda), take);
  return made(family_of(c), desc, c, gemm_ar);
}

}  // namespace

OverlapCandidate parse_overlap_config(const OverlapShape& shape, int num_sms,
                                      const std::string& text) {
  switch (shape.kind) {
    case OverlapKind::kAgGemm:
      return ag_gemm_of(shape, num_sms, text);
    case OverlapKind::kGemmRs:
      return gemm_rs_of(shape, num_sms, text);
    case OverlapKind::kGemmAr:
      break;
  }
  return gemm_ar_of(shape, num_sms, text);
}

}  // namespace stretto::bench
