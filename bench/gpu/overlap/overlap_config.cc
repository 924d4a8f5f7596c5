#include "bench/gpu/overlap/overlap_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "stretto/base/errors.h"

namespace stretto::bench {
namespace {

// "key=value" words; each is to be taken by somebody.
class Fields {
 public:
  explicit Fields(const std::string& text) : text_(text) {
    std::istringstream in(text);
    for (std::string word; in >> word;) {
      std::size_t at = word.find('=');
      values_[word.substr(0, at)] = at == std::string::npos ? "1" : word.substr(at + 1);
    }
  }

  template <typename T>
  void take(const std::string& key, T& to) {
    auto at = values_.find(key);
    if (at == values_.end()) return;
    const std::string& value = at->second;
    std::int64_t number = 0;
    auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size()) refuse(key);
    to = static_cast<T>(number);
    values_.erase(at);
  }

  void take(const std::string& key, GemmTile& tile) {
    auto at = values_.find(key);
    if (at == values_.end()) return;
    std::istringstream in(at->second);
    char x1 = 0, x2 = 0;
    in >> tile.bm >> x1 >> tile.bn >> x2 >> tile.bk;
    if (in.fail() || x1 != 'x' || x2 != 'x') refuse(key);
    values_.erase(at);
  }

  // One of several words.
  template <typename T>
  void take(const std::string& key, T& to, const std::map<std::string, T>& words) {
    auto at = values_.find(key);
    if (at == values_.end()) return;
    auto word = words.find(at->second);
    if (word == words.end()) refuse(key);
    to = word->second;
    values_.erase(at);
  }

  void end() const {
    if (!values_.empty()) refuse(values_.begin()->first);
  }

 private:
  [[noreturn]] void refuse(const std::string& key) const {
    throw UserError(fmt::format("config '{}': '{}' is not understood here", text_, key));
  }

  std::string text_;
  std::map<std::string, std::string> values_;
};

const std::map<std::string, Gather> kGathers = {
    {"pull", Gather::kPull}, {"send", Gather::kSend}, {"push", Gather::kPush}};
const std::map<std::string, Scatter> kScatters = {{"epilogue", Scatter::kEpilogue},
                                                  {"copy_engine", Scatter::kCopyEngine}};

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

// The end of every list: of the main loop.
template <typename Config>
void take_loop(Fields& fields, Config& c) {
  fields.take("stages", c.num_stages);
  fields.take("raster", c.raster);
  fields.take("stagger", c.stagger);
  fields.take("store_slots", c.store_slots);
  fields.end();
}

// The config that `take` makes of one: what the text does not name is made to fit the shape, what
// it names is the operator's to refuse.
template <typename Desc, typename Config, typename Take>
Config taken(const Desc& desc, const Config& config, const Take& take) {
  return take(fitted(desc, take(config)));
}

OverlapCandidate ag_gemm_of(const OverlapShape& s, int sms, const Fields& text) {
  AgGemmDesc desc = ag_gemm_desc(s);
  Gather gather = Gather::kSend;
  Fields(text).take("gather", gather, kGathers);
  auto take = [&](AgGemmConfig c) {
    Fields fields = text;
    fields.take("gather", c.gather, kGathers);
    fields.take("tile", c.tile);
    fields.take("workers", c.num_gather_workers);
    c.num_compute_sms = gather == Gather::kPush ? sms - c.num_gather_workers : sms;
    fields.take("compute", c.num_compute_sms);
    fields.take("comm_rows", c.comm_rows);
    fields.take("channels", c.channels_per_rank);
    fields.take("consumers", c.num_consumers);
    fields.take("cluster", c.cluster_size);
    take_loop(fields, c);
    return c;
  };
  AgGemmConfig c = taken(desc, default_config(desc, Target::kCuda, gather), take);
  return made(name(gather), desc, c, ag_gemm);
}

OverlapCandidate gemm_rs_of(const OverlapShape& s, int sms, const Fields& text) {
  GemmRsDesc desc = gemm_rs_desc(s);
  auto take = [&](GemmRsConfig c) {
    Fields fields = text;
    fields.take("scatter", c.scatter, kScatters);
    bool engine = c.scatter == Scatter::kCopyEngine;
    fields.take("tile", c.tile);
    fields.take("reduce", c.num_reduce_sms);
    c.num_compute_sms = sms - c.num_reduce_sms - (engine ? 1 : 0);  // one rings for the engine
    fields.take("compute", c.num_compute_sms);
    fields.take("queues", c.num_copy_queues);
    fields.take("channels", c.channels_per_rank);
    c.num_slots = engine ? 1 : 2;
    fields.take("slots", c.num_slots);
    fields.take("load_slots", c.load_slots);
    take_loop(fields, c);
    return c;
  };
  GemmRsConfig c = taken(desc, default_config(desc, Target::kCuda), take);
  return made(c.scatter == Scatter::kCopyEngine ? "copy" : "epilogue", desc, c, gemm_rs);
}

OverlapCandidate gemm_ar_of(const OverlapShape& s, int sms, const Fields& text) {
  GemmArDesc desc = gemm_ar_desc(s);
  ReduceShots shots = default_config(desc, Target::kCuda).shots;
  const std::map<std::string, ReduceShots> words = {
      {"1", ReduceShots::kOne}, {"2", ReduceShots::kTwo}, {"shared", ReduceShots::kShared}};
  Fields(text).take("shots", shots, words);
  auto take = [&](GemmArConfig c) {
    Fields fields = text;
    fields.take("shots", c.shots, words);
    c.packets = false;
    fields.take("packets", c.packets);
    fields.take("scatter", c.scatter, kScatters);
    fields.take("gather", c.gather, kScatters);
    bool engine = c.scatter == Scatter::kCopyEngine;
    fields.take("tile", c.tile);
    fields.take("reduce", c.num_reduce_sms);
    c.num_compute_sms = sms - c.num_reduce_sms - (engine ? 1 : 0);
    std::int64_t tiles = ceil_div(desc.m, c.tile.bm) * ceil_div(desc.n, c.tile.bn);
    if (shots != ReduceShots::kTwo) {
      c.channels = tiles;
      c.num_compute_sms = static_cast<int>(std::min<std::int64_t>(c.num_compute_sms, tiles));
    }
    fields.take("compute", c.num_compute_sms);
    fields.take("channels", c.channels);
    c.num_slots = engine ? 1 : 2;
    fields.take("slots", c.num_slots);
    fields.take("queues", c.num_copy_queues);
    fields.take("load_slots", c.load_slots);
    take_loop(fields, c);
    return c;
  };
  GemmArConfig c = taken(desc, default_config(desc, shots, Target::kCuda), take);
  return made(family_of(c), desc, c, gemm_ar);
}

}  // namespace

OverlapCandidate parse_overlap_config(const OverlapShape& shape, int num_sms,
                                      const std::string& text) {
  Fields fields(text);
  switch (shape.kind) {
    case OverlapKind::kAgGemm:
      return ag_gemm_of(shape, num_sms, fields);
    case OverlapKind::kGemmRs:
      return gemm_rs_of(shape, num_sms, fields);
    case OverlapKind::kGemmAr:
      break;
  }
  return gemm_ar_of(shape, num_sms, fields);
}

}  // namespace stretto::bench
