// How the collectives run on GPUs: what is worth a measurement, and what measurements have decided.
#include "stretto/ops/collectives/collectives_sm90.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "stretto/ops/operator/config_list.h"

namespace stretto {
namespace {

constexpr std::int64_t kLeastTile = 2048, kManyElements = 128 * 1024, kMostTile = 1024 * 1024;

// Tiles of about so many elements, on at most `most` SMs.
CollectiveConfig gpu_config(const CollectiveDesc& d, std::int64_t elements, int most) {
  constexpr std::int64_t kPerThread = 16;  // elements in registers
  CollectiveConfig c;
  c.threads = elements <= kLeastTile ? 256 : 512;
  std::int64_t piece = kPerThread * c.threads;
  c.tile_cols = std::min({d.n, elements, piece});
  c.tile_rows = std::clamp<std::int64_t>(elements / d.n, 1, ceil_div(d.m, d.world_size));
  c.piece_rows = std::clamp<std::int64_t>(piece / c.tile_cols, 1, c.tile_rows);
  std::int64_t tiles = ceil_div(d.m, c.tile_rows) * ceil_div(d.n, c.tile_cols);
  c.num_workers = gpu_workers(tiles, most);
  c.num_copy_sms = c.num_workers;
  return c;
}

// A tile in registers at once, 16 bytes of it in each thread.
CollectiveConfig push_config(const CollectiveDesc& d, std::int64_t elements, int sms) {
  CollectiveConfig c;
  std::int64_t of_thread = 16 / static_cast<std::int64_t>(size_bytes(d.dtype));
  c.threads = static_cast<int>(std::clamp<std::int64_t>(elements / of_thread / 128, 1, 8) * 128);
  std::int64_t piece = of_thread * c.threads;
  c.tile_cols = std::min({d.n, elements, piece});
  c.tile_rows = std::clamp<std::int64_t>(elements / c.tile_cols, 1, ceil_div(d.m, d.world_size));
  c.piece_rows = std::clamp<std::int64_t>(piece / c.tile_cols, 1, c.tile_rows);
  std::int64_t tiles =
      ceil_div(ceil_div(d.m, d.world_size), c.tile_rows) * ceil_div(d.n, c.tile_cols);
  c.num_workers = gpu_workers(tiles, sms);
  c.num_copy_sms = c.num_workers;
  c.push = true;
  return c;
}

// Threads among which whole rows are dealt out without any left over; else as many as usual. Loads
// of rows that leave some over are guarded and come one by one, which takes longer.
int threads_of_rows(const CollectiveDesc& d) {
  constexpr int kUsual = 512, kStep = 128;  // of CollectiveConfig::threads
  constexpr std::int64_t kRun = 8;
  bool whole = d.n % (kRun * kUsual) == 0;
  bool halved = d.n % kRun == 0 && d.n < kRun * kUsual && std::has_single_bit(std::uint64_t(d.n));
  // Wider elements of several ranks would not fit into the registers of more threads.
  if (whole || halved || size_bytes(d.dtype) != 2) return kUsual;
  int threads = row_threads(d.n);
  while (threads % kStep != 0) threads = row_threads(d.n, threads - 1);
  return threads > 0 ? threads : kUsual;
}

// Tiles of whole rows, as many for each of `parts` workers, of `rows` that a rank has to do with.
CollectiveConfig row_config(const CollectiveDesc& d, std::int64_t rows, int parts, int most) {
  CollectiveConfig c;
  c.threads = threads_of_rows(d);
  c.tile_cols = d.n;
  std::int64_t per_thread = c.threads <= 512 || d.world_size <= 4 ? 16 : 8;  // of each rank
  std::int64_t rounds = ceil_div(rows * d.n, parts * kMostTile);
  c.tile_rows = ceil_div(rows, parts * rounds);
  c.piece_rows = std::clamp<std::int64_t>(per_thread * c.threads / d.n, 1, c.tile_rows);
  c.tile_rows = ceil_div(c.tile_rows, c.piece_rows) * c.piece_rows;
  c.num_workers = c.num_copy_sms = gpu_workers(ceil_div(d.m, c.tile_rows), most);
  return c;
}

// Of push_config's threads those that have a run of a row; as many tiles for each SM.
CollectiveConfig push_rows_config(const CollectiveDesc& d, std::int64_t elements, int sms) {
  CollectiveConfig c = push_config(d, elements, sms);
  std::int64_t rows = ceil_div(d.m, d.world_size), tiles = ceil_div(rows * d.n, elements);
  std::int64_t rounds = std::max<std::int64_t>(tiles / sms, 1);
  c.threads = threads_of_rows(d);
  c.tile_cols = d.n;
  c.tile_rows = ceil_div(rows, rounds * sms);
  c.piece_rows = 1;
  c.num_workers = c.num_copy_sms = gpu_workers(ceil_div(rows, c.tile_rows), sms);
  return c;
}

// Whether push_config leaves threads without a run of a row that others have one of.
bool pushes_whole_rows(const CollectiveDesc& d) {
  int threads = threads_of_rows(d);
  return threads != 512 && threads * std::int64_t{8} == d.n;
}

constexpr std::int64_t kRingTile = 32 * 1024;

// Every SM sends and receives, or `receivers` only receive.
CollectiveConfig ring_config(const CollectiveDesc& d, std::int64_t elements, int receivers,
                             int sms) {
  CollectiveConfig c = push_config(d, elements, sms);
  c.ring_slots = 2;
  c.num_receivers = receivers;
  c.num_workers = std::min(c.num_workers, sms - receivers);
  c.num_copy_sms = c.num_workers;
  return c;
}

// 32 SMs that copy fill NVLink in either direction, so half of a GPU's SMs leave room for a second
// role. There is a tile for each of 32, until it is so large that its signals no longer count.
std::int64_t gpu_tile_elements(const CollectiveDesc& d) {
  std::int64_t run = ceil_div(d.m, d.world_size) * d.n, elements = kLeastTile;
  auto tiles = [&] { return elements < kManyElements ? 32 : 64; };
  while (elements < kMostTile && elements * tiles() < run) elements *= 2;
  return elements;
}

CollectiveConfig within(const CollectiveDesc& d, CollectiveConfig c) {
  c.tile_rows = std::min<std::int64_t>(c.tile_rows, ceil_div(d.m, d.world_size));
  c.tile_cols = std::min(c.tile_cols, d.n);
  return c;
}

// The default where nobody pushes.
CollectiveConfig fetch_config(const CollectiveDesc& d, int sms) {
  return gpu_config(d, gpu_tile_elements(d), sms / 2);
}

// A tile for each SM, as far as tiles are worth a signal.
std::int64_t push_tile_elements(const CollectiveDesc& d, int sms) {
  std::int64_t run = ceil_div(d.m, d.world_size) * d.n, elements = kLeastTile / 2;
  while (elements < 16 * kLeastTile && elements * sms < run) elements *= 2;
  return elements;
}

std::int64_t message_bytes(const CollectiveDesc& d) {
  return d.m * d.n * static_cast<std::int64_t>(size_bytes(d.dtype));
}

// A packet has 4 bytes of payload.
bool fits_packets(const CollectiveDesc& d) {
  return size_bytes(d.dtype) == 2 || size_bytes(d.dtype) == 4;
}

// Messages of up to so many bytes are pushed, and as packets.
constexpr std::int64_t kMega = std::int64_t{1} << 20;
constexpr std::int64_t kMostPushed = 16 * kMega, kMostPackets = 4 * kMega;
// GPUs that all write at once get more of their links than those that all read, and what a rank
// sends may lie in ordinary memory. So larger messages are pushed, too, in rings. More than two
// GPUs take as long to read messages of up to 128 MB, and read them. What goes through registers is
// proved piece by piece, so the largest messages are read.
bool in_rings(const CollectiveDesc& d) {
  std::int64_t bytes = message_bytes(d);
  if (d.world_size == 2) return bytes > kMostPushed && bytes <= 1024 * kMega;
  return d.world_size > 2 && bytes >= 128 * kMega && bytes <= 256 * kMega;
}
// What a rank gets from all others in one hop of an all-reduce; beyond, two hops are faster.
constexpr std::int64_t kMostOneHopIn = kMega;

// Of what is quantised whole rows are tiles, some of which go through registers at a time. Chosen
// like those that push what is not quantised, and not measured yet. From kLeastInRings on slots for
// all of a message would take more memory than rings do.
CollectiveConfig quantized_config(const CollectiveDesc& d, Target target) {
  constexpr std::int64_t kLeastInRings = 64 * kMega, kPerThread = 8, kCpuElements = 32 * 1024;
  const std::int64_t rows = ceil_div(d.m, std::int64_t{d.world_size});
  CollectiveConfig c;
  c.push = true;
  c.tile_cols = d.n;
  if (target == Target::kCpu) {
    c.tile_rows = std::clamp<std::int64_t>(kCpuElements / d.n, 1, std::min<std::int64_t>(64, rows));
    return c;
  }
  const bool rings = message_bytes(d) >= kLeastInRings;
  const std::int64_t elements = rings ? kRingTile : push_tile_elements(d, target.sms());
  const std::int64_t groups = std::max(elements, d.n) / kPerThread / 128;
  c.threads = pushes_whole_rows(d) ? threads_of_rows(d)
                                   : static_cast<int>(std::clamp<std::int64_t>(groups, 1, 4) * 128);
  c.tile_rows = std::clamp<std::int64_t>(elements / d.n, 1, rows);
  c.piece_rows = std::clamp<std::int64_t>(kPerThread * c.threads / d.n, 1, c.tile_rows);
  c.tile_rows = ceil_div(c.tile_rows, c.piece_rows) * c.piece_rows;
  c.num_workers = gpu_workers(ceil_div(rows, c.tile_rows), target.sms());
  if (rings) {
    c.ring_slots = 2;
    c.num_receivers = 64;
    c.num_workers = std::min(c.num_workers, target.sms() - c.num_receivers);
  }
  c.num_copy_sms = c.num_workers;
  return c;
}

}  // namespace

CollectiveConfig default_config(const CollectiveDesc& d, Target target) {
  if (quantizes(d)) return quantized_config(d, target);
  if (target == Target::kCpu) return within(d, {});
  if (in_rings(d)) return ring_config(d, kRingTile, 64, target.sms());
  if (d.world_size == 1 || message_bytes(d) > kMostPushed) {
    return within(d, fetch_config(d, target.sms()));
  }
  // Tiles of whole rows pay where narrow tiles do not cut a row evenly, or messages are large.
  bool rows = pushes_whole_rows(d) && message_bytes(d) >= kMega &&
              (message_bytes(d) > kMostPackets || d.n % kLeastTile != 0);
  CollectiveConfig c = rows ? push_rows_config(d, 16 * kLeastTile, target.sms())
                            : push_config(d, push_tile_elements(d, target.sms()), target.sms());
  c.packets = fits_packets(d) && message_bytes(d) <= kMostPackets;
  return c;
}

CollectiveConfig default_fetching_config(const CollectiveDesc& d, Target target) {
  CollectiveConfig c = default_config(d, target);
  // Up to there it has the tiles of those that push.
  const bool as_if_pushed = message_bytes(d) <= (d.world_size > 2 ? kMostPushed : kMostPackets);
  if (target != Target::kCpu && !as_if_pushed) return within(d, fetch_config(d, target.sms()));
  c.push = c.packets = false;
  return c;
}

CollectiveConfig default_two_shot_config(const CollectiveDesc& d, Target target) {
  CollectiveConfig c = default_config(d, target);
  if (quantizes(d)) {
    c.num_receivers = 0;
    return c;
  }
  return c.ring_slots > 0 ? ring_config(d, kRingTile, 0, target.sms()) : c;
}

CollectiveConfig default_all_reduce_config(const CollectiveDesc& d, Target target) {
  CollectiveConfig c = default_two_shot_config(d, target);
  if (d.payload != Payload::kSame) return c;
  std::int64_t bytes = message_bytes(d), arriving = (d.world_size - 1) * bytes;
  if (target == Target::kCpu) {
    constexpr std::int64_t kMostOneShot = std::int64_t{64} * 1024;
    c.all_reduce = bytes <= kMostOneShot ? AllReduceKind::kOneShot : AllReduceKind::kTwoShot;
  } else if (d.world_size > 1 && arriving <= kMostOneHopIn) {
    CollectiveDesc all_rows = d;  // are every rank's
    all_rows.world_size = 1;
    c = push_config(all_rows, push_tile_elements(all_rows, target.sms()), target.sms());
    c.push = false;
    c.all_reduce = fits_packets(d) ? AllReduceKind::kPacket : AllReduceKind::kOneShot;
  }
  return c;
}

std::vector<CollectiveConfig> gpu_push_candidates(const CollectiveDesc& d, bool two_hops,
                                                  const GpuTarget& gpu) {
  constexpr std::int64_t kLeast = 1024, kMost = 16 * 1024;
  const int sms = gpu.sms;
  const std::int64_t most_tiles = std::int64_t{4} * sms;
  std::int64_t run = ceil_div(d.m, d.world_size) * d.n;
  std::vector<CollectiveConfig> all;
  if (in_rings(d)) {
    for (std::int64_t e : {kRingTile / 2, kRingTile}) {
      for (int receivers : two_hops ? std::vector<int>{0} : std::vector<int>{48, 64, 80}) {
        all.push_back(ring_config(d, e, receivers, sms));
      }
    }
    if (pushes_whole_rows(d)) {
      CollectiveConfig rows = ring_config(d, kRingTile, two_hops ? 0 : 64, sms);
      rows.threads = threads_of_rows(d);
      all.push_back(rows);
    }
    return all;
  }
  for (std::int64_t e = kLeast; e <= kMost && all.size() < 4; e *= 2) {
    if (ceil_div(run, e) <= most_tiles) all.push_back(push_config(d, e, sms));
  }
  if (pushes_whole_rows(d) && ceil_div(run, kMost) <= most_tiles) {
    all.push_back(push_rows_config(d, kMost, sms));
  }
  // Beyond this the bytes count more than the round trip.
  if (!fits_packets(d) || message_bytes(d) > 2 * kMostPackets) return all;
  for (std::size_t i = 0, count = all.size(); i < count; ++i) {
    all.push_back(all[i]);
    all.back().packets = true;
  }
  return all;
}

std::vector<CollectiveConfig> gpu_row_candidates(const CollectiveDesc& d, std::int64_t rows,
                                                 int num_roles, const GpuTarget& gpu) {
  constexpr std::int64_t kMostPerThread = 16;
  std::vector<CollectiveConfig> all;
  if (d.n > kMostPerThread * threads_of_rows(d)) return all;
  for (int parts : {gpu.sms / 2, gpu.sms}) {
    all.push_back(row_config(d, rows, parts, std::min(parts, gpu.sms / num_roles)));
  }
  return all;
}

std::vector<CollectiveConfig> gpu_candidates(const CollectiveDesc& d, int num_roles, bool copies,
                                             const GpuTarget& gpu) {
  std::int64_t elements = gpu_tile_elements(d);
  std::vector<CollectiveConfig> all = {within(d, fetch_config(d, gpu.sms))};
  auto add = [&](const CollectiveConfig& c) {
    bool known = std::any_of(all.begin(), all.end(), [&](const CollectiveConfig& other) {
      return to_string(other) == to_string(c);
    });
    if (!known) all.push_back(c);
  };
  for (std::int64_t e : {elements / 2, elements * 2, elements * 4, elements * 8, elements / 4}) {
    if (e >= kLeastTile / 2) add(gpu_config(d, e, gpu.sms / num_roles));
  }
  add(gpu_config(d, elements, 32));
  all.push_back(all[0]);
  all.back().threads = 1024;
  if (!copies) return all;
  for (std::int64_t chunks : {1, 4}) {
    CollectiveConfig c = all[0];
    c.num_copy_sms = 0;
    c.num_queues = d.world_size;
    // A role that reduces keeps its tiles, of which copies are as many.
    if (num_roles == 1) {
      std::int64_t most = std::max<std::int64_t>((1 << 24) / c.tile_cols, 1);  // a program's limit
      c.tile_rows = std::min(ceil_div(ceil_div(d.m, d.world_size), chunks), most);
    }
    add(c);
  }
  return all;
}

std::vector<CollectiveConfig> gpu_configs(const CollectiveDesc& d, Collective collective,
                                          AllReduceKind kind, const GpuTarget& gpu) {
  bool two_shot = collective == Collective::kAllReduce && kind == AllReduceKind::kTwoShot;
  bool may_push = collective != Collective::kAllReduce || two_shot;
  std::vector<CollectiveConfig> configs;
  if (quantizes(d)) return {two_shot ? default_two_shot_config(d, gpu) : default_config(d, gpu)};
  if (may_push) {
    configs.push_back(two_shot ? default_two_shot_config(d, gpu) : default_config(d, gpu));
  }
  auto add_all = [&](const std::vector<CollectiveConfig>& more) {
    for (const CollectiveConfig& config : more) add(configs, config);
  };
  // The all-gather's engines would copy the own rows within the rank, which graphs refuse.
  add_all(gpu_candidates(d, two_shot ? 2 : 1, two_shot, gpu));
  // A packet's words take registers of their own.
  if (collective != Collective::kAllGather && (may_push || kind == AllReduceKind::kOneShot)) {
    std::int64_t rows = may_push ? ceil_div(d.m, std::int64_t{d.world_size}) : d.m;
    add_all(gpu_row_candidates(d, rows, two_shot ? 2 : 1, gpu));
  }
  if (may_push) add_all(gpu_push_candidates(d, two_shot, gpu));
  for (CollectiveConfig& config : configs) config.all_reduce = kind;
  return configs;
}

}  // namespace stretto
