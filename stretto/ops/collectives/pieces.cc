#include "stretto/ops/collectives/pieces.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/operator/field_check.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto::collective {

namespace {

void check_use(const Form& form, const CollectiveDesc& d, CollectiveConfig c) {
  auto fields = FieldFit::refusing(fmt::format("{} {}", form.name, to_string(d)));
  fields.at_most("piece_rows", c.piece_rows, c.tile_rows, "a tile has no more rows");
  if (!form.pushes) fields.only("push", c.push, false, "it has no form in which senders write");
  if (!c.push) fields.only("packets", c.packets, false, "packets are pushed");
  if (!c.push || c.packets) {
    fields.only("ring_slots", c.ring_slots, 0, "only pushes with signals go in rings");
  }
  if (c.ring_slots == 0 || !form.one_hop) {
    fields.only("num_receivers", c.num_receivers, 0, "only rings of one hop have receivers");
  }
  if (!form.several_workers) fields.only("num_workers", c.num_workers, 1, "one walks the ring");
  if (!c.push && c.num_copy_sms > 0) {
    fields.only("num_queues", c.num_queues, 1, "SMs copy (num_copy_sms)");
  }
}

// A row is quantised as a whole, by its sender.
void check_payload(const Form& form, const CollectiveDesc& d, CollectiveConfig c) {
  if (d.payload == Payload::kSame) return;
  auto refuse = [&](const std::string& why) {
    throw UserError(fmt::format("{} as {}: {}", form.name, name(d.payload), why));
  };
  if (!form.pushes) refuse("it has no form in which senders write");
  if (!is_float(d.dtype) || size_bytes(d.dtype) == 1 || d.dtype == DType::kF64) {
    refuse(fmt::format("of {}, need float32, float16 or bfloat16", stretto::name(d.dtype)));
  }
  if (!is_sum(d.reduction)) {
    refuse(fmt::format("{}, need a sum or an average", name(d.reduction)));
  }
  if (d.n > kMostPayloadColumns) {
    refuse(fmt::format("rows of {} elements, need {} or fewer", d.n, kMostPayloadColumns));
  }
  if (!quantizes(d)) return;
  auto fields = FieldFit::refusing(fmt::format("{} {}", form.name, to_string(d)));
  fields.only("push", c.push, true, "who sends quantises");
  fields.only("packets", c.packets, false, "scales travel beside their rows");
  if (c.tile_cols < d.n) fields.only("tile_cols", c.tile_cols, d.n, "a row has one scale");
}

void check_reduction(const Form& form, const CollectiveDesc& d) {
  if (d.reduction == Reduction::kAverage && !is_float(d.dtype)) {
    throw UserError(fmt::format("{}: an average of {} need not be one; sum, min, max or product",
                                form.name, stretto::name(d.dtype)));
  }
  if (d.reduction == Reduction::kPremulSum && reduced_in(d.dtype) != DType::kF32) {
    throw UserError(fmt::format(
        "{}: premultiplied sums are of floats up to float32, as their factor is, not {}", form.name,
        stretto::name(d.dtype)));
  }
}

}  // namespace

void check(const Form& form, const CollectiveDesc& d, const CollectiveConfig& c) {
  check_sizes("collective", {{"m", d.m}, {"n", d.n}, {"world_size", d.world_size}});
  check_reduction(form, d);
  check_sizes("collective", {{"tile_rows", c.tile_rows},
                             {"tile_cols", c.tile_cols},
                             {"num_workers", c.num_workers},
                             {"num_queues", c.num_queues}});
  if (c.piece_rows < 0 || c.threads < 0 || c.threads > 1024 || c.threads % 128 != 0) {
    throw UserError(fmt::format(
        "collective: piece_rows {}, threads {}: need 0 or more, and 0 to 1024 in steps of 128",
        c.piece_rows, c.threads));
  }
  // A worker sends a tile before it receives that of its last turn.
  if (c.ring_slots < 0 || c.ring_slots == 1) {
    throw UserError(
        fmt::format("collective: ring_slots is {}, need 0, or 2 or more", c.ring_slots));
  }
  check_use(form, d, c);
  check_payload(form, d, c);
}

Program finish(ProgramBuilder& p, const CollectiveConfig& cfg) {
  Program program = p.finish();
  for (Role& role : program.roles) role.agents[0].num_threads = cfg.threads;
  return program;
}

Runs::Runs(const Index& rows, const CollectiveDesc& d, const CollectiveConfig& cfg)
    : m(rows),
      run_rows(max(ceil_div(rows, d.world_size), 1)),
      tiles_per_run(ceil_div(ceil_div(d.m, d.world_size), cfg.tile_rows)) {}

std::int64_t rows_held(const CollectiveConfig& cfg) {
  return cfg.piece_rows == 0 ? cfg.tile_rows : std::min(cfg.piece_rows, cfg.tile_rows);
}

void for_pieces(ProgramBuilder& p, const CollectiveConfig& cfg,
                const std::function<void(const Index&, std::int64_t)>& fn) {
  std::int64_t rows = rows_held(cfg);
  if (rows == cfg.tile_rows) return fn(0, rows);
  p.loop(ceil_div(cfg.tile_rows, rows), [&](const Index& i) { fn(i * rows, rows); });
}

Rounding::Rounding(ProgramBuilder& p, const CollectiveDesc& d)
    : p_(p), dtype_(d.dtype), reduction_(d.reduction) {
  if (reduction_ == Reduction::kPremulSum) factor_ = p.float_scalar("factor");
}

Value Rounding::scaled(const Value& sum) const {
  if (reduction_ == Reduction::kPremulSum) return sum * p_.splat(factor_);
  bool divides = reduction_ == Reduction::kAverage && p_.world_size() > 1;
  return divides ? sum * (1.0 / p_.world_size()) : sum;
}

}  // namespace stretto::collective
