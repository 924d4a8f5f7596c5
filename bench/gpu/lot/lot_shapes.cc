#include "bench/gpu/lot/lot_shapes.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <tuple>

#include "stretto/base/errors.h"

namespace stretto::bench {
namespace {

constexpr LotModel kModels[] = {
    {"Llama-2-7B", 4096, 11008, 4096, 4096},
    {"Llama-2-13B", 5120, 13824, 5120, 5120},
    {"Llama-3-8B", 4096, 14336, 4096, 1024},
    {"Llama-3-70B", 8192, 28672, 8192, 1024},
    {"Llama-3.1-405B", 16384, 53248, 16384, 1024},
    {"Llama-3.2-1B", 2048, 8192, 2048, 512},
    {"Llama-3.2-3B", 3072, 8192, 3072, 1024},
    {"Mistral-Nemo-12B", 5120, 14336, 4096, 1024},
    {"Mistral-Small-24B", 5120, 32768, 4096, 1024},
    {"Mistral-Large-123B", 12288, 28672, 12288, 1024},
    {"Qwen2.5-0.5B", 896, 4864, 896, 128},
    {"Qwen2.5-1.5B", 1536, 8960, 1536, 256},
    {"Qwen2.5-3B", 2048, 11008, 2048, 256},
    {"Qwen2.5-7B", 3584, 18944, 3584, 512},
    {"Qwen2.5-32B", 5120, 27648, 5120, 1024},
    {"Qwen2.5-72B", 8192, 29568, 8192, 1024},
    {"Qwen3-4B", 2560, 9728, 4096, 1024},
    {"Qwen3-14B", 5120, 17408, 5120, 1024},
    {"Qwen3-32B", 5120, 25600, 8192, 1024},
    {"Gemma-2-2B", 2304, 9216, 2048, 1024},
    {"Gemma-2-9B", 3584, 14336, 4096, 2048},
    {"Gemma-2-27B", 4608, 36864, 4096, 2048},
    {"Gemma-3-12B", 3840, 15360, 4096, 2048},
    {"Gemma-3-27B", 5376, 21504, 4096, 2048},
    {"Phi-3-mini", 3072, 8192, 3072, 3072},
    {"Phi-4", 5120, 17920, 5120, 1280},
    {"Yi-34B", 7168, 20480, 7168, 1024},
    {"GLM-4-9B", 4096, 13696, 4096, 256},
    {"InternLM2-20B", 6144, 16384, 6144, 1024},
    {"DeepSeek-67B", 8192, 22016, 8192, 1024},
    {"Command-R-35B", 8192, 22528, 8192, 8192},
    {"Command-R-Plus-104B", 12288, 33792, 12288, 1024},
    {"Falcon-7B", 4544, 18176, 4544, 64, false},
    {"Falcon-40B", 8192, 32768, 8192, 512, false},
    {"GPT-NeoX-20B", 6144, 24576, 6144, 6144, false},
    {"OPT-30B", 7168, 28672, 7168, 7168, false},
    {"StarCoder2-15B", 6144, 24576, 6144, 512, false},
    {"Nemotron-4-340B", 18432, 73728, 18432, 1536, false},
};

constexpr SeenWeight kSeen[] = {
    {3584, 14336}, {4096, 11008}, {4096, 12288}, {4096, 14336}, {4608, 14336}, {4608, 22016},
    {4608, 36864}, {5120, 20480}, {5120, 25600}, {6144, 12288}, {6144, 18432}, {6144, 24576},
    {7168, 16384}, {7168, 18432}, {8192, 14336}, {8192, 28672}, {8192, 29568}, {9216, 22016},
    {18432, 6144}, {20480, 5120}, {22016, 4096}, {23552, 6656}, {24576, 4096}, {28672, 3584},
    {28672, 4096}, {32768, 6144}, {36864, 7168}, {40960, 6144}, {51200, 5120}, {57344, 8192},
    {59136, 8192}, {73728, 4608},
};

constexpr double kMostRowsLog2 = 15;
constexpr std::int64_t kGraphRows = 256;  // up to so many come from decoding, which runs in graphs
constexpr std::int64_t kAligned = 8;      // elements of a row: the libraries' and ours is 16 bytes

// Standard distributions differ between libraries, a generator does not.
class Lot {
 public:
  explicit Lot(std::uint64_t seed) : bits_(seed) {}
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(part() * count); }
  double part() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }  // [0, 1)

 private:
  std::mt19937_64 bits_;
};

std::int64_t drawn_rows(Lot& lot) {
  const double log = kMostRowsLog2 * lot.part();
  const bool power = lot.below(2) == 0;
  return std::llround(std::exp2(power ? std::round(log) : log));
}

// Of all ranks.
OverlapShape drawn_layer(Lot& lot) {
  const LotModel& model = kModels[lot.below(std::size(kModels))];
  const auto kind = static_cast<OverlapKind>(lot.below(3));
  const bool attention = lot.below(2) == 0, gathers = kind == OverlapKind::kAgGemm;
  OverlapShape s{.kind = kind};
  const char* layer = nullptr;
  if (gathers) {
    layer = attention ? "q, k and v" : model.gated ? "gate and up" : "up";
    s.rank.n = attention ? model.queries + 2 * model.keys : model.wide * (model.gated ? 2 : 1);
    s.rank.k = model.hidden;
  } else {
    layer = attention ? "attention's output" : "down";
    s.rank.n = model.hidden;
    s.rank.k = attention ? model.queries : model.wide;
  }
  s.rank.label = std::string(model.name) + ", " + layer;
  s.rank.m = drawn_rows(lot);
  return s;
}

bool is_seen(const GemmShape& of_all) {
  return std::ranges::any_of(
      kSeen, [&](const SeenWeight& w) { return w.n == of_all.n && w.k == of_all.k; });
}

}  // namespace

std::span<const LotModel> lot_models() { return kModels; }
std::span<const SeenWeight> seen_weights() { return kSeen; }

std::vector<OverlapShape> drawn_shapes(int world_size, std::uint64_t seed, int count) {
  Lot lot(seed);
  std::vector<OverlapShape> shapes;
  std::set<std::tuple<OverlapKind, std::int64_t, std::int64_t, std::int64_t>> drawn;
  while (std::ssize(shapes) < count) {
    OverlapShape s = drawn_layer(lot);
    if (is_seen(s.rank)) continue;
    std::int64_t& split = s.kind == OverlapKind::kAgGemm ? s.rank.n : s.rank.k;
    if (split % (world_size * kAligned) != 0) continue;
    split /= world_size;
    if (s.kind != OverlapKind::kGemmAr)
      s.rank.m = ceil_div(s.rank.m, std::int64_t{world_size}) * world_size;
    if (!drawn.insert({s.kind, s.rank.m, s.rank.n, s.rank.k}).second) continue;
    s.world_size = world_size;
    s.decode = s.rank.m <= kGraphRows;
    shapes.push_back(std::move(s));
  }
  return shapes;
}

}  // namespace stretto::bench
