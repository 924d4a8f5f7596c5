#include "bench/gpu/overlap/overlap_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/gpu/operand_type.h"
#include "stretto/base/errors.h"
#include "stretto/ops/gemm/row_runs.h"

namespace stretto::bench {
namespace {

// A main loop: stages fill the shared memory beside the store's staging.
struct Loop {
  GemmTile tile;
  int stages, stagger = 0, store_slots = 0;
};
constexpr Loop kWide{{128, 256, 64}, 4}, kMiddle{{128, 192, 64}, 4}, kNarrow{{128, 128, 64}, 6},
    kOddWide{{128, 224, 64}, 4}, kSmall{{64, 64, 64}, 8}, kFlat{{64, 128, 64}, 6},
    kEpilogueWarp{{128, 256, 64}, 3, 0, 4}, kMiddleEpilogueWarp{{128, 192, 64}, 4, 2, 4},
    kNarrowEpilogueWarp{{128, 128, 64}, 6, 3, 2}, kOddApart{{128, 160, 64}, 5, 3},
    kEpilogueWarpApart{{128, 256, 64}, 3, 1, 4}, kLoaded{{128, 256, 64}, 3, 0, 3},
    kLoadedApart{{128, 256, 64}, 3, 1, 3};

// At most 1 / channels of a run of rows, and no more channels than blocks of rows.
std::int64_t channels_of(std::int64_t run_rows, std::int64_t rows, std::int64_t at_most) {
  return std::clamp<std::int64_t>(run_rows / rows, 1, at_most);
}

// Adds what `make` gives, or why it cannot; a config that is there already, not again.
template <typename Desc, typename Config, typename Make>
void add(std::vector<OverlapCandidate>& out, const char* family, const Desc& desc,
         const Config& config, const Make& make) {
  std::string text = to_string(config);
  if (std::any_of(out.begin(), out.end(), [&](const auto& c) { return c.config == text; })) return;
  OverlapCandidate& c = out.emplace_back();
  c.family = family;
  c.config = text;
  try {
    c.program = make(desc, config);
  } catch (const Error& e) {
    c.error = e.what();
  }
}

void add_ag_gemm(std::vector<OverlapCandidate>& out, const OverlapShape& s, int sms, bool quick) {
  AgGemmDesc desc = ag_gemm_desc(s);
  struct Choice {
    Loop loop;
    Gather gather;
    int workers;
    std::int64_t comm_rows, channels;
  };
  // What has been the fastest for some rows on two or four H200s, and what it is compared with.
  constexpr Choice kChoices[] = {
      {kWide, Gather::kPush, 16, 32, 32},
      {kWide, Gather::kSend, 1, 1024, 4},
      {kMiddleEpilogueWarp, Gather::kSend, 1, 1024, 4},
      {kEpilogueWarpApart, Gather::kSend, 1, 1024, 4},
      {kNarrowEpilogueWarp, Gather::kSend, 1, 1024, 4},
      {kOddApart, Gather::kSend, 1, 1024, 4},
      {kWide, Gather::kPush, 4, 128, 8},
      {kWide, Gather::kSend, 1, 512, 8},
      {kMiddle, Gather::kSend, 1, 1024, 4},
      {kOddWide, Gather::kSend, 1, 1024, 4},
      {kOddWide, Gather::kSend, 3, 128, 8},
      {kNarrow, Gather::kSend, 1, 1024, 4},
  };
  add(out, name(Gather::kSend), desc, default_config(desc, Target::kCuda, Gather::kSend), ag_gemm);
  std::int64_t run_rows = s.rank.m / s.world_size;
  for (const Choice& c : kChoices) {
    AgGemmConfig config{
        .loop = {.tile = c.loop.tile,
                 .num_compute_sms = c.gather != Gather::kPush ? sms : sms - c.workers,
                 .raster = own_first_raster(desc, c.loop.tile, 8),
                 .num_stages = c.loop.stages,
                 .stagger = c.loop.stagger,
                 .store_slots = c.loop.store_slots},
        .gather = c.gather,
        .num_gather_workers = c.workers,
        .comm_rows = std::min(c.comm_rows, run_rows),
        .channels_per_rank = channels_of(run_rows, c.loop.tile.bm, c.channels)};
    add(out, name(c.gather), desc, fitted(desc, config), ag_gemm);
    if (quick && out.size() == 3) return;
  }
}

// How gemm_rs and the two-shot gemm_ar scatter their partial sums.
struct ScatterChoice {
  Loop loop;
  Scatter scatter;
  int reduce, queues;
  std::int64_t channels;
  int load_slots = 0;
  // One SM rings for the copy engine.
  int taken() const { return reduce + (scatter == Scatter::kCopyEngine ? 1 : 0); }
  int num_slots() const { return scatter == Scatter::kEpilogue ? 2 : 1; }
};
// A piece costs an engine some 9 us beside its bytes on four H200s (decision 0009's table): few
// large ones, or queues that take turns at the waiting.
constexpr ScatterChoice kScatters[] = {
    {kWide, Scatter::kCopyEngine, 0, 1, 4},
    {kWide, Scatter::kEpilogue, 0, 1, 32},
    {kEpilogueWarp, Scatter::kCopyEngine, 0, 1, 2},
    {kEpilogueWarpApart, Scatter::kCopyEngine, 0, 1, 2},
    {kEpilogueWarp, Scatter::kCopyEngine, 0, 1, 2, 3},
    {kEpilogueWarp, Scatter::kCopyEngine, 0, 1, 1, 3},
    {kEpilogueWarp, Scatter::kCopyEngine, 0, 2, 2, 3},
    {kEpilogueWarp, Scatter::kCopyEngine, 0, 2, 4, 3},
    {kEpilogueWarp, Scatter::kCopyEngine, 0, 3, 3, 3},
    {kEpilogueWarpApart, Scatter::kCopyEngine, 0, 1, 2, 3},
    {kLoaded, Scatter::kCopyEngine, 0, 1, 2, 2},
    {kLoadedApart, Scatter::kCopyEngine, 0, 1, 2, 2},
    {kNarrow, Scatter::kEpilogue, 0, 1, 32},
    {kNarrow, Scatter::kCopyEngine, 0, 1, 2},
    {kMiddleEpilogueWarp, Scatter::kCopyEngine, 0, 1, 2},
    {kMiddleEpilogueWarp, Scatter::kEpilogue, 0, 1, 32},
    {kNarrowEpilogueWarp, Scatter::kEpilogue, 0, 1, 32},
    {kEpilogueWarp, Scatter::kEpilogue, 0, 1, 32},
    {kEpilogueWarpApart, Scatter::kEpilogue, 0, 1, 32},
};

// The same of rows of `cols` columns, each channel moved by one copy where engines scatter.
std::int64_t channels_of(std::int64_t run_rows, const ScatterChoice& c, std::int64_t cols) {
  std::int64_t wanted = channels_of(run_rows, c.loop.tile.bm, c.channels);
  if (c.scatter == Scatter::kEpilogue) return wanted;
  return std::max(wanted, least_channels(run_rows, c.loop.tile.bm, cols));
}

void add_gemm_rs(std::vector<OverlapCandidate>& out, const OverlapShape& s, int sms, bool quick) {
  GemmRsDesc desc = gemm_rs_desc(s);
  std::int64_t run_rows = s.rank.m / s.world_size;
  const GemmRsConfig usual = default_config(desc, Target::kCuda);
  add(out, usual.scatter == Scatter::kEpilogue ? "epilogue" : "copy", desc, usual, gemm_rs);
  for (const ScatterChoice& c : kScatters) {
    GemmRsConfig config{.loop = {.tile = c.loop.tile,
                                 .num_compute_sms = sms - c.taken(),
                                 .raster = 8,
                                 .num_stages = c.loop.stages,
                                 .stagger = c.loop.stagger,
                                 .store_slots = c.loop.store_slots,
                                 .load_slots = c.load_slots},
                        .num_reduce_sms = c.reduce,
                        .scatter = c.scatter,
                        .num_copy_queues = c.queues,
                        .channels_per_rank = channels_of(run_rows, c, s.rank.n),
                        .num_slots = c.num_slots()};
    add(out, c.scatter == Scatter::kEpilogue ? "epilogue" : "copy", desc, fitted(desc, config),
        gemm_rs);
    if (quick && out.size() == 3) return;
  }
}

// With tiles of all ranks' rows.
void add_few_rows(std::vector<OverlapCandidate>& out, const OverlapShape& s, int sms, bool quick) {
  struct Choice {
    Loop loop;
    bool packets = false;
    ReduceShots shots = ReduceShots::kOne;
  };
  std::vector<Choice> choices = {{kSmall}, {kFlat}, {kNarrow}};
  for (const Loop& loop : {kSmall, kFlat, kNarrow}) {
    choices.push_back({loop, true, ReduceShots::kShared});
    if (s.world_size > 2) choices.push_back({loop, false, ReduceShots::kShared});
  }
  if (s.rank.m <= kFewRows) {
    MainLoop loop = gpu_loop({.m = s.rank.m,
                              .n = s.rank.n,
                              .k = s.rank.k,
                              .a_dtype = kDType,
                              .b_dtype = kDType,
                              .num_sms = sms});
    Loop streaming{loop.tile, loop.num_stages};
    choices.insert(choices.begin(), {{streaming, true}, {streaming}, {kSmall, true}});
  }
  for (const Choice& c : choices) {
    std::int64_t tiles = ceil_div(s.rank.m, c.loop.tile.bm) * ceil_div(s.rank.n, c.loop.tile.bn);
    GemmArConfig config{
        .loop = {.tile = c.loop.tile,
                 .num_compute_sms = static_cast<int>(std::min<std::int64_t>(tiles, sms)),
                 .num_stages = c.loop.stages},
        .shots = c.shots,
        .num_reduce_sms = 0,
        .packets = c.packets,
        .channels = tiles};
    GemmArDesc desc = gemm_ar_desc(s);
    add(out, family_of(config), desc, fitted(desc, config), gemm_ar);
    if (quick && out.size() == 2) return;
  }
}

void add_usual_gemm_ar(std::vector<OverlapCandidate>& out, const OverlapShape& s) {
  GemmArDesc desc = gemm_ar_desc(s);
  GemmArConfig usual = default_config(desc, Target::kCuda);
  add(out, family_of(usual), desc, usual, gemm_ar);
}

void add_two_shot(std::vector<OverlapCandidate>& out, const OverlapShape& s, int sms, bool quick) {
  std::int64_t run_rows = s.rank.m / s.world_size;
  std::size_t before = out.size();
  for (ScatterChoice c : kScatters) {
    if (run_rows <= 64 && c.loop.store_slots > 0) continue;
    if (run_rows <= 64) c.loop = c.loop.tile.bn == 128 ? kFlat : kSmall;
    GemmArDesc desc = gemm_ar_desc(s);
    GemmArConfig config{.loop = {.tile = c.loop.tile,
                                 .num_compute_sms = sms - c.taken(),
                                 .raster = 8,
                                 .num_stages = c.loop.stages,
                                 .stagger = c.loop.stagger,
                                 .store_slots = c.loop.store_slots,
                                 .load_slots = c.load_slots},
                        .shots = ReduceShots::kTwo,
                        .num_reduce_sms = c.reduce,
                        .channels = channels_of(run_rows, c, s.rank.n),
                        .num_slots = c.num_slots(),
                        .scatter = c.scatter,
                        .num_copy_queues = c.queues};
    for (Scatter gather : {Scatter::kEpilogue, c.scatter}) {
      config.gather = gather;
      add(out, "two", desc, fitted(desc, config), gemm_ar);
    }
    if (quick && out.size() == before + 2) return;
  }
}

// Few rows go to every rank in one hop, or a share of each tile does; of many rows each is one
// rank's.
constexpr std::int64_t kMaxFewRows = 256, kMinTwoShotRows = 64;

}  // namespace

const char* family_of(const GemmArConfig& config) {
  switch (config.shots) {
    case ReduceShots::kOne:
      return config.packets ? "packets" : "one";
    case ReduceShots::kTwo:
      return "two";
    case ReduceShots::kShared:
      return "shared";
  }
  throw InternalError("gemm_ar: unknown shots");
}

const char* name(OverlapKind kind) {
  constexpr const char* kNames[] = {"ag_gemm", "gemm_rs", "gemm_ar"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string OverlapShape::to_string() const {
  return fmt::format("{} P={} m={} n={} k={}", name(kind), world_size, rank.m, rank.n, rank.k);
}

AgGemmDesc ag_gemm_desc(const OverlapShape& shape) {
  return {.world_size = shape.world_size,
          .m = shape.rank.m,
          .n = shape.rank.n,
          .k = shape.rank.k,
          .a_dtype = kDType,
          .b_dtype = kDType,
          .c_dtype = kDType};
}

GemmRsDesc gemm_rs_desc(const OverlapShape& shape) {
  return {.world_size = shape.world_size,
          .m = shape.rank.m,
          .n = shape.rank.n,
          .k = shape.rank.k,
          .a_dtype = kDType,
          .b_dtype = kDType,
          .out_dtype = kDType};
}

GemmArDesc gemm_ar_desc(const OverlapShape& shape) {
  return {.world_size = shape.world_size,
          .m = shape.rank.m,
          .n = shape.rank.n,
          .k = shape.rank.k,
          .a_dtype = kDType,
          .b_dtype = kDType,
          .out_dtype = kDType};
}

OpShape shape_of_all_ranks(const OverlapShape& shape) {
  const bool gathers = shape.kind == OverlapKind::kAgGemm;
  const std::int64_t ranks = shape.world_size;
  return {.world_size = shape.world_size,
          .m = shape.rank.m,
          .n = shape.rank.n * (gathers ? ranks : 1),
          .k = shape.rank.k * (gathers ? 1 : ranks),
          .dtype = kDType,
          .target = Target::kCuda};
}

std::vector<OverlapShape> overlap_shapes(int world_size, bool quick) {
  struct Layer {
    OverlapKind kind;
    std::int64_t m, k, n;  // of all ranks
    bool quick;
  };
  constexpr Layer kLayers[] = {
      {OverlapKind::kAgGemm, 8192, 4096, 22016, false},
      {OverlapKind::kAgGemm, 8192, 4096, 28672, true},
      {OverlapKind::kAgGemm, 8192, 8192, 57344, false},
      {OverlapKind::kAgGemm, 8192, 3584, 28672, false},
      {OverlapKind::kAgGemm, 8192, 4608, 73728, false},
      {OverlapKind::kAgGemm, 8192, 8192, 59136, false},
      {OverlapKind::kAgGemm, 4096, 4096, 28672, false},
      {OverlapKind::kAgGemm, 4096, 8192, 57344, false},
      {OverlapKind::kAgGemm, 1024, 8192, 57344, true},
      {OverlapKind::kGemmRs, 8192, 11008, 4096, false},
      {OverlapKind::kGemmRs, 8192, 14336, 4096, true},
      {OverlapKind::kGemmRs, 8192, 28672, 8192, false},
      {OverlapKind::kGemmRs, 8192, 14336, 3584, false},
      {OverlapKind::kGemmRs, 8192, 36864, 4608, false},
      {OverlapKind::kGemmRs, 8192, 29568, 8192, false},
      {OverlapKind::kGemmRs, 4096, 14336, 4096, false},
      {OverlapKind::kGemmRs, 4096, 28672, 8192, false},
      {OverlapKind::kGemmRs, 1024, 28672, 8192, false},
  };
  std::vector<OverlapShape> shapes;
  for (const Layer& l : kLayers) {
    if (quick && !l.quick) continue;
    bool columns = l.kind == OverlapKind::kAgGemm;
    shapes.push_back({.kind = l.kind,
                      .rank = {.label = name(l.kind),
                               .m = l.m,
                               .n = columns ? l.n / world_size : l.n,
                               .k = columns ? l.k : l.k / world_size},
                      .world_size = world_size});
  }
  for (std::int64_t m : {1, 16, 64, 256, 1024, 4096, 8192}) {
    if (quick && m != 64) continue;
    shapes.push_back({.kind = OverlapKind::kGemmAr,
                      .rank = {.label = "gemm_ar", .m = m, .n = 8192, .k = 7168},
                      .world_size = world_size,
                      .decode = true});
  }
  return shapes;
}

std::vector<OverlapCandidate> overlap_candidates(const OverlapShape& s, int sms, bool quick) {
  std::vector<OverlapCandidate> out;
  switch (s.kind) {
    case OverlapKind::kAgGemm:
      add_ag_gemm(out, s, sms, quick);
      break;
    case OverlapKind::kGemmRs:
      add_gemm_rs(out, s, sms, quick);
      break;
    case OverlapKind::kGemmAr:
      add_usual_gemm_ar(out, s);
      if (s.rank.m <= kMaxFewRows) add_few_rows(out, s, sms, quick);
      if (s.rank.m >= kMinTwoShotRows) add_two_shot(out, s, sms, quick);
      break;
  }
  return out;
}

}  // namespace stretto::bench
