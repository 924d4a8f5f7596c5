// The words of the language that touch memory or signals.
#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/ir/tile_map.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

DType dtype_of(const Program& program, const Slice& slice) {
  return program.tensors[static_cast<std::size_t>(slice.region().tensor)].dtype;
}

// Of the words by which peers tell each other of a map's tiles: a tile has a channel of its own.
void need_channel_per_tile(const Program& program, const char* word, const SignalRef& signal,
                           const TileMapRef& map, const Loc& loc) {
  const TileMap& m = program.maps[static_cast<std::size_t>(map.idx())];
  std::int64_t tiles = num_tiles(program, m);
  if (signal.num_channels() >= tiles) return;
  const SourceLoc at = to_source_loc(loc);
  throw UserError(fmt::format("{}:{}: {}: signal '{}' has {} channels, map '{}' needs {}", at.file,
                              at.line, word,
                              program.signals[static_cast<std::size_t>(signal.idx())].name,
                              signal.num_channels(), m.name, tiles));
}

}  // namespace

Value ProgramBuilder::load(const Slice& from, Loc loc) {
  emit(OpCode::kLoad, loc);
  blocks_.back().block->pop_back();
  Value v = emit_value(OpCode::kLoad,
                       {dtype_of(program_, from), from.region().rows, from.region().cols}, {});
  blocks_.back().block->back().region = from.region();
  return v;
}

Value ProgramBuilder::load_rows(const Slice& from, const Value& row_idx, Loc loc) {
  emit(OpCode::kLoadRows, loc);
  blocks_.back().block->pop_back();
  Value v =
      emit_value(OpCode::kLoadRows,
                 {dtype_of(program_, from), from.region().rows, from.region().cols}, {&row_idx});
  blocks_.back().block->back().region = from.region();
  return v;
}

Value ProgramBuilder::load_packet(const Slice& from, Loc loc) {
  Value v = load(from, loc);
  blocks_.back().block->back().code = OpCode::kLoadPacket;
  return v;
}

void ProgramBuilder::store(const Slice& to, const Value& value, Loc loc) {
  Op& op = emit(OpCode::kStore, loc);
  op.operands = {operand(value, "store")};
  op.region = to.region();
}

void ProgramBuilder::store_rows(const Slice& to, const Value& row_idx, const Value& value,
                                Loc loc) {
  Op& op = emit(OpCode::kStoreRows, loc);
  op.operands = {operand(value, "store_rows"), operand(row_idx, "store_rows")};
  op.region = to.region();
}

void ProgramBuilder::reduce_store(const Slice& to, const Value& value, Loc loc) {
  Op& op = emit(OpCode::kReduceStore, loc);
  op.operands = {operand(value, "reduce_store")};
  op.region = to.region();
}

void ProgramBuilder::store_packet(const Slice& to, const Value& value, Loc loc) {
  Op& op = emit(OpCode::kStorePacket, loc);
  op.operands = {operand(value, "store_packet")};
  op.region = to.region();
}

void ProgramBuilder::copy(const Slice& to, const Slice& from, Loc loc) {
  Op& op = emit(OpCode::kCopy, loc);
  op.region = from.region();
  op.region2 = to.region();
}

void ProgramBuilder::put_signal(const Slice& to, const Slice& from, const ChannelRef& channel,
                                const Index& rank, Loc loc) {
  copy(to, from, loc);
  notify(channel, rank, 1, loc);
}

void ProgramBuilder::notify(const ChannelRef& channel, const Index& rank, const Index& amount,
                            Loc loc) {
  Op& op = emit(OpCode::kNotify, loc);
  op.symbol = channel.signal;
  op.exprs = {channel.channel, rank, amount};
}

void ProgramBuilder::wait(const ChannelRef& channel, const Index& at_least, Loc loc) {
  Op& op = emit(OpCode::kWait, loc);
  op.symbol = channel.signal;
  op.exprs = {channel.channel, at_least};
  if (program_.signals[static_cast<std::size_t>(channel.signal)].per_source)
    op.exprs.push_back(channel.channel);
}

void ProgramBuilder::notify(const SignalRef& signal, const Index& rank, Loc loc) {
  if (!program_.signals[static_cast<std::size_t>(signal.idx())].per_source) {
    last_loc_ = to_source_loc(loc);
    fail(fmt::format("signal '{}' has channels: name the channel to notify",
                     program_.signals[static_cast<std::size_t>(signal.idx())].name));
  }
  notify(signal[this->rank()], rank, 1, loc);
}

void ProgramBuilder::wait(const SignalRef& signal, const Index& from_rank, Loc loc) {
  if (!program_.signals[static_cast<std::size_t>(signal.idx())].per_source) {
    last_loc_ = to_source_loc(loc);
    fail(fmt::format("signal '{}' has channels: name the channel to wait for",
                     program_.signals[static_cast<std::size_t>(signal.idx())].name));
  }
  wait(signal[from_rank], 1, loc);
}

void ProgramBuilder::notify_all(const SignalRef& signal, Loc loc) {
  loop(
      0, world_size(), [&](const Index& i) { notify(signal, (rank() + i) % world_size(), loc); },
      loc);
}

void ProgramBuilder::wait_all(const SignalRef& signal, Loc loc) {
  loop(
      0, world_size(), [&](const Index& i) { wait(signal, (rank() + i) % world_size(), loc); },
      loc);
}

void ProgramBuilder::barrier(SignalRef& signal, Loc loc) {
  int nth = ++signal.num_barriers_;
  notify_all(signal, loc);
  loop(
      0, world_size(), [&](const Index& i) { wait(signal[(rank() + i) % world_size()], nth, loc); },
      loc);
}

void ProgramBuilder::worker_fence(Loc loc) { emit(OpCode::kFence, loc); }

void ProgramBuilder::producer_tile_notify(const SignalRef& signal, const TileMapRef& map,
                                          const Tile& t, NotifyMode mode, Loc loc) {
  Op& op = emit(OpCode::kProducerTileNotify, loc);
  op.symbol = map.idx();
  op.symbol2 = signal.idx();
  op.exprs = {t.index};
  op.mode = mode;
}

void ProgramBuilder::consumer_tile_wait(const SignalRef& signal, const TileMapRef& map,
                                        const Index& row_begin, const Index& row_end, Loc loc) {
  Op& op = emit(OpCode::kConsumerTileWait, loc);
  op.symbol = map.idx();
  op.symbol2 = signal.idx();
  op.exprs = {row_begin, row_end};
}

void ProgramBuilder::peer_tile_notify(const SignalRef& signal, const TileMapRef& map, const Tile& t,
                                      const Index& rank, Loc loc) {
  need_channel_per_tile(program_, "peer_tile_notify", signal, map, loc);
  notify(signal[t.index], rank, 1, loc);
}

void ProgramBuilder::peer_tile_wait(const SignalRef& signal, const TileMapRef& map, const Tile& t,
                                    const Index& rank, Loc loc) {
  need_channel_per_tile(program_, "peer_tile_wait", signal, map, loc);
  Op& op = emit(OpCode::kWait, loc);
  op.symbol = signal.idx();
  op.exprs = {t.index, 1, rank};
}

ProgramBuilder::TileRows ProgramBuilder::rows_of_tile(const TileMapRef& map, const Tile& t,
                                                      const TensorRef& from, const TensorRef& to,
                                                      const Loc& loc) {
  last_loc_ = to_source_loc(loc);
  if (from.num_dims() != 2 || to.num_dims() != 2 || !from.dim(1).is_const()) {
    fail("tile_push_data and tile_pull_data move rows of matrices with a fixed number of columns");
  }
  std::int64_t rows = program_.maps[static_cast<std::size_t>(map.idx())].tile_rows;
  std::int64_t cols = from.dim(1).const_value();
  return {from.tile({t.row, 0}, rows, cols).until_row(t.row_end),
          to.tile({t.row, 0}, rows, cols).until_row(t.row_end)};
}

void ProgramBuilder::tile_push_data(const TileMapRef& map, const Tile& t, const TensorRef& from,
                                    const TensorRef& to, Loc loc) {
  TileRows rows = rows_of_tile(map, t, from, to, loc);
  copy(rows.to.on(t.owner), rows.from, loc);
}

void ProgramBuilder::tile_pull_data(const TileMapRef& map, const Tile& t, const TensorRef& from,
                                    const TensorRef& to, Loc loc) {
  TileRows rows = rows_of_tile(map, t, from, to, loc);
  copy(rows.to, rows.from.on(t.owner), loc);
}

}  // namespace stretto
