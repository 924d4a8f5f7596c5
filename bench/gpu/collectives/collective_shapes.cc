#include "bench/gpu/collectives/collective_shapes.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/gpu/operand_type.h"
#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"

namespace stretto::bench {
namespace {

constexpr std::size_t kKilobyte = 1024, kMegabyte = kKilobyte * 1024;
constexpr std::int64_t kNormWidth = 8192;

CollectiveShape make_shape(CollectiveKind kind, std::size_t bytes, int world_size) {
  auto elements = static_cast<std::int64_t>(bytes / size_bytes(kDType));
  // Eight rows at least: whole rows for every rank of up to eight.
  std::int64_t n = std::min<std::int64_t>(elements / 8, 8192), m = elements / n;
  if (kind == CollectiveKind::kAllToAll) {  // rows of a block, as wide as a token
    n = std::min<std::int64_t>(n, 2048);
    m = elements / n / world_size;
  }
  return {.kind = kind,
          .bytes = bytes,
          .desc = {.dtype = kDType, .m = m, .n = n, .world_size = world_size}};
}

std::vector<CollectiveCandidate> of_norm(const CollectiveShape& s) {
  NormDesc desc = norm_desc(s);
  std::vector<CollectiveCandidate> out;
  struct Way {
    const char* text;
    bool packets, two_shot;
  };
  for (Way way : {Way{", packets", true, false}, Way{", packets in two shots", true, true},
                  Way{"", false, false}}) {
    for (int threads : {1024, 512}) {
      NormConfig config = default_config(desc, Target::kCuda);
      config.packets = way.packets;
      config.two_shot = way.two_shot;
      config.threads = threads;
      out.push_back({fmt::format("{} rows a tile, {} workers, {} threads{}", config.tile_rows,
                                 config.num_workers, threads, way.text),
                     all_reduce_add_rms_norm(desc, config)});
    }
  }
  if (s.bytes < 4 * kMegabyte) return out;
  for (std::int64_t rows : {2, 4, 8}) {  // more bytes under way
    for (int threads : {512, 1024}) {
      NormConfig config = default_config(desc, Target::kCuda);
      config.tile_rows = rows;
      config.num_workers = gpu_workers(ceil_div(desc.m, rows), GpuTarget{}.sms);
      config.threads = threads;
      out.push_back({fmt::format("{} rows a tile, {} workers, {} threads", rows,
                                 config.num_workers, threads),
                     all_reduce_add_rms_norm(desc, config)});
    }
  }
  return out;
}

Program program(const CollectiveShape& s, const CollectiveConfig& config) {
  switch (s.kind) {
    case CollectiveKind::kAllGather:
      return all_gather(s.desc, config);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(s.desc, config);
    case CollectiveKind::kAllReduce:
      return all_reduce(s.desc, config);
    case CollectiveKind::kAllToAll:
      return all_to_all(s.desc, config);
    case CollectiveKind::kAllReduceNorm:
      break;
  }
  throw InternalError("collectives: a kind without a CollectiveConfig");
}

}  // namespace

std::vector<CollectiveShape> collective_shapes(int world_size, bool quick) {
  constexpr std::size_t kSizes[] = {
      4 * kKilobyte, 16 * kKilobyte, 64 * kKilobyte, 256 * kKilobyte, 512 * kKilobyte,
      kMegabyte,     4 * kMegabyte,  16 * kMegabyte, 64 * kMegabyte,  256 * kMegabyte};
  constexpr std::size_t kQuick[] = {16 * kKilobyte, kMegabyte, 64 * kMegabyte};
  std::vector<std::size_t> sizes(std::begin(kSizes), std::end(kSizes));
  if (quick) sizes.assign(std::begin(kQuick), std::end(kQuick));
  std::vector<CollectiveShape> shapes;
  for (std::size_t bytes : sizes) {
    // Beyond these the bytes of one hop count more than the second hop.
    struct Way {
      AllReduceKind kind;
      std::size_t at_most;
    };
    for (Way way :
         {Way{AllReduceKind::kPacket, 4 * kMegabyte}, Way{AllReduceKind::kOneShot, 16 * kMegabyte},
          Way{AllReduceKind::kTwoShot, 256 * kMegabyte}}) {
      if (bytes > way.at_most) continue;
      shapes.push_back(make_shape(CollectiveKind::kAllReduce, bytes, world_size));
      shapes.back().all_reduce = way.kind;
    }
    shapes.push_back(make_shape(CollectiveKind::kAllGather, bytes, world_size));
    shapes.push_back(make_shape(CollectiveKind::kReduceScatter, bytes, world_size));
    if (bytes >= kMegabyte) {
      shapes.push_back(make_shape(CollectiveKind::kAllToAll, bytes, world_size));
    }
  }
  for (std::int64_t m : {1, 16, 64, 256, 1024, 4096}) {
    shapes.push_back(
        {.kind = CollectiveKind::kAllReduceNorm,
         .bytes = static_cast<std::size_t>(m * kNormWidth) * size_bytes(kDType),
         .desc = {.dtype = kDType, .m = m, .n = kNormWidth, .world_size = world_size}});
  }
  return shapes;
}

NormDesc norm_desc(const CollectiveShape& s) {
  return {.dtype = kDType,
          .weight_dtype = kDType,
          .m = s.desc.m,
          .hidden = s.desc.n,
          .world_size = s.desc.world_size};
}

std::vector<CollectiveCandidate> collective_candidates(const CollectiveShape& s, bool quick) {
  if (s.kind == CollectiveKind::kAllReduceNorm) return of_norm(s);
  bool two_roles = s.kind == CollectiveKind::kAllReduce && s.all_reduce == AllReduceKind::kTwoShot;
  // Copy engines that fetch do not get on in graphs of several launches (docs/internals/gpus.md).
  constexpr bool kCopies = false;
  CollectiveDesc rows = s.desc;
  if (s.kind == CollectiveKind::kAllToAll) rows.m *= s.desc.world_size;
  std::vector<CollectiveConfig> configs = gpu_candidates(rows, two_roles ? 2 : 1, kCopies);
  bool pushes = s.kind != CollectiveKind::kAllReduce || two_roles;
  if (pushes && !quick) {
    for (const CollectiveConfig& c : gpu_push_candidates(rows, two_roles)) configs.push_back(c);
  }
  bool adds = s.kind == CollectiveKind::kReduceScatter || s.kind == CollectiveKind::kAllReduce;
  bool one_shot = s.kind == CollectiveKind::kAllReduce && s.all_reduce == AllReduceKind::kOneShot;
  if ((adds && pushes) || one_shot) {
    std::int64_t of_rank = one_shot ? rows.m : ceil_div(rows.m, std::int64_t{rows.world_size});
    std::vector<CollectiveConfig> even = gpu_row_candidates(rows, of_rank, two_roles ? 2 : 1);
    configs.insert(configs.begin() + 1, even.begin(), even.end());
  }
  if (quick) configs.resize(std::min<std::size_t>(configs.size(), 2));
  std::vector<CollectiveCandidate> out;
  for (CollectiveConfig& c : configs) {
    c.all_reduce = s.all_reduce;
    out.push_back({to_string(c), program(s, c)});
  }
  return out;
}

std::string CollectiveShape::to_string() const {
  std::string size = bytes < kMegabyte ? fmt::format("{} KB", bytes / kKilobyte)
                                       : fmt::format("{} MB", bytes / kMegabyte);
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather " + size;
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter " + size;
    case CollectiveKind::kAllReduce:
      return fmt::format("all_reduce {} {}", name(all_reduce), size);
    case CollectiveKind::kAllToAll:
      return "all_to_all " + size;
    case CollectiveKind::kAllReduceNorm:
      return fmt::format("all_reduce_norm {}x{}", desc.m, desc.n);
  }
  throw InternalError("collectives: unknown kind");
}

double CollectiveShape::bus_bytes() const {
  double world = desc.world_size;
  bool twice = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllReduceNorm;
  return static_cast<double>(bytes) * (twice ? 2 : 1) * (world - 1) / world;
}

}  // namespace stretto::bench
