#include "stretto/ops/moe/ep_send.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

void check(const char* op, const EpDesc& d, const SendConfig& c) {
  check_sizes(op, {{"m", d.m},
                   {"hidden", d.hidden},
                   {"num_experts", d.num_experts},
                   {"top_k", d.top_k},
                   {"world_size", d.world_size},
                   {"num_workers", c.num_workers},
                   {"tile_tokens", c.tile_tokens}});
  check_dtype(op, "dtype", d.dtype);
  check_split(op, split_of(d));
}

// Tokens travel as they are: load() reads one of x, store() writes what was loaded to a rank.
class Rows {
 public:
  Rows(ProgramBuilder& p, const EpDesc& d, const Index& own_rows) : p_(p), hidden_(d.hidden) {
    x_ = p.input("x", d.dtype, {own_rows, d.hidden});
    recv_ = p.state("recv", d.dtype, {d.received_rows(), d.hidden}, Space::kSymmetric);
  }
  void load(const Index& token) {
    data_ = p_.load(x_.tile({token, 0}, 1, hidden_));  // [1, hidden]
  }
  void store(const Index& row, const Index& to) {
    p_.store(recv_.on(to).tile({row, 0}, 1, hidden_), data_);
  }

 private:
  ProgramBuilder& p_;
  std::int64_t hidden_;
  TensorRef x_, recv_;
  Value data_;
};

// Tokens travel as e4m3 with scales: a row of a tile is a block of the token that has a scale.
class ScaledBlocks {
 public:
  ScaledBlocks(ProgramBuilder& p, const EpDesc& d, const Index& own_rows)
      : p_(p), blocks_(d.hidden / kScaleBlock) {
    const std::int64_t rows = d.received_rows();
    x_ = p.input("x", d.dtype, {own_rows, blocks_, kScaleBlock});
    recv_ = p.state("recv", DType::kF8E4M3, {rows, blocks_, kScaleBlock}, Space::kSymmetric);
    scales_ = p.state("recv_scales", DType::kF32, {rows, blocks_, 1}, Space::kSymmetric);
  }
  void load(const Index& token) {
    constexpr double kLargest = 448, kLeast = 1e-4;  // of e4m3; that is scaled
    Value x = cast(p_.load(x_.tile({token, 0, 0}, blocks_, kScaleBlock)), DType::kF32);
    Value largest = maximum(row_max(abs(x)), p_.full(DType::kF32, 1, 1, kLeast));  // [B, 1]
    data_ = cast(x * (p_.full(DType::kF32, 1, 1, kLargest) / largest), DType::kF8E4M3);
    scale_ = largest * (1 / kLargest);
  }
  void store(const Index& row, const Index& to) {
    p_.store(recv_.on(to).tile({row, 0, 0}, blocks_, kScaleBlock), data_);
    p_.store(scales_.on(to).tile({row, 0, 0}, blocks_, 1), scale_);
  }

 private:
  ProgramBuilder& p_;
  std::int64_t blocks_;
  TensorRef x_, recv_, scales_;
  Value data_, scale_;
};

template <typename Tokens>
Program send(const char* name, const EpDesc& d, const SendConfig& cfg) {
  const std::int64_t rows = d.rows_per_rank(), ranks = d.world_size;
  const ExpertSplit split = split_of(d);
  ProgramBuilder p(name, d.world_size);
  Index m = p.extent("m", d.m), own_rows = ceil_div(m, ranks);
  Tokens tokens(p, d, own_rows);
  TensorRef experts =
      p.table("experts", {own_rows, d.top_k}, {ContractKind::kRange, 0, d.num_experts});
  TensorRef weights = p.input("weights", DType::kF32, {own_rows, d.top_k});
  TensorRef recv_experts =
      p.output("recv_experts", DType::kI32, {ranks * rows, d.top_k}, Space::kSymmetric);
  TensorRef recv_weights =
      p.output("recv_weights", DType::kF32, {ranks * rows, d.top_k}, Space::kSymmetric);
  TensorRef positions = p.output("positions", DType::kI32, {rows, ranks});
  SignalRef ready = p.signal("ready");  // a rank's launch has begun: its tensors may be written
  SignalRef sent = p.signal("sent");  // by source: tiles of tokens that are there, or go elsewhere
  Index own_end = min(own_rows, m - p.rank() * own_rows);

  p.on_start([&] { p.notify_all(ready); });
  auto send_token = [&](const Index& token, bool waits) {
    Index row = p.let("row", p.rank() * rows + token);
    tokens.load(token);
    Value ids = p.load(experts.tile({token, 0}, 1, d.top_k));
    Value shares = p.load(weights.tile({token, 0}, 1, d.top_k));
    if (waits) p.wait_all(ready);  // the token is under way
    Value nowhere = p.full(DType::kI32, 1, 1, -1);
    p.when(
        token < own_end,
        [&] {
          std::vector<Index> chosen;
          for (std::int64_t j = 0; j < d.top_k; ++j) {
            chosen.push_back(p.read(experts, {token, j}));
          }
          p.loop(ranks, [&](const Index& i) {
            Index to = p.let("to", (p.rank() + 1 + i) % ranks);
            Index first = p.let("first", split.first(to)), end = p.let("end", split.end(to));
            Index any = 0;
            for (const Index& expert : chosen) any = any || (first <= expert && expert < end);
            Index goes = p.let("goes", any);
            p.when(goes, [&] { tokens.store(row, to); });
            p.store(recv_experts.on(to).tile({row, 0}, 1, d.top_k), ids);
            p.store(recv_weights.on(to).tile({row, 0}, 1, d.top_k), shares);
            p.store(positions.tile({token, to}, 1, 1),
                    p.splat(DType::kI32, select(goes, token, -1)));
          });
        },
        [&] {
          p.loop(ranks, [&](const Index& to) {
            p.store(recv_experts.on(to).tile({row, 0}, 1, d.top_k), broadcast(nowhere, 1, d.top_k));
            p.store(recv_weights.on(to).tile({row, 0}, 1, d.top_k),
                    p.zeros(DType::kF32, 1, d.top_k));
            p.store(positions.tile({token, to}, 1, 1), nowhere);
          });
        });
  };
  const std::int64_t tiles = ceil_div(rows, cfg.tile_tokens);
  p.role("send", Resource::sms(cfg.num_workers), p.range(tiles), [&](const Tile& t) {
    if (cfg.tile_tokens == 1) {
      send_token(t.index, true);
    } else {
      p.wait_all(ready);
      p.loop(cfg.tile_tokens, [&](const Index& i) {
        Index token = p.let("token", t.index * cfg.tile_tokens + i);
        p.when(token < rows, [&] { send_token(token, false); });
      });
    }
    p.notify_all(sent);
  });
  p.on_end([&] { p.loop(ranks, [&](const Index& from) { p.wait(sent[from], tiles); }); });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = cfg.threads;
  return program;
}

}  // namespace

SendConfig default_send_config(const EpDesc& d, Target target) {
  if (target == Target::kCpu) return {};
  // As many as leave every worker several tiles.
  constexpr std::int64_t kMostTokens = 8;
  std::int64_t rows = d.rows_per_rank();
  std::int64_t tokens = std::clamp<std::int64_t>(rows / (3 * kGpuSms), 1, kMostTokens);
  return {.num_workers = gpu_workers(ceil_div(rows, tokens)),
          .threads = row_threads(d.hidden),
          .tile_tokens = tokens};
}

Program ep_send(const EpDesc& d, const SendConfig& cfg) {
  check("ep_send", d, cfg);
  return send<Rows>("ep_send", d, cfg);
}

Program ep_send_fp8(const EpDesc& d, const SendConfig& cfg) {
  check("ep_send_fp8", d, cfg);
  if (d.hidden % kScaleBlock != 0) {
    throw UserError(
        fmt::format("ep_send_fp8: hidden is {}, must be a multiple of {}", d.hidden, kScaleBlock));
  }
  return send<ScaledBlocks>("ep_send_fp8", d, cfg);
}

}  // namespace stretto
