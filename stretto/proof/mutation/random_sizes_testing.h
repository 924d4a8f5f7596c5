// Small random programs that compute with their run-time sizes: where roles part rows, how many
// tiles there are, what is waited for and how far ranks push goes by sums, products, quotients,
// remainders, min, max and conditions of one to three extents, the rank and entries of tables. Each
// is right at every size and for every table, or has a slip that shows at some, drawn by the same
// lot: its twin. Slips show only at some sizes, and often at none: a wait may be needless there. So
// they go by conditions that hold somewhere, and of many kinds a program often has two.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "stretto/lang/program_builder.h"

namespace stretto::sample {

class RandomSizes {
 public:
  // The same seed draws the same program, with or without the slip.
  RandomSizes(std::uint64_t seed, bool slips) : random_(seed), slips_(slips) {}

  Program program() {
    int world = chance(20) ? 1 : between(2, 3), num_extents = chance(70) ? 1 : between(2, 3);
    ProgramBuilder p("sizes", world);
    bool few = num_extents == 2 && chance(30);  // sequences of many tokens
    for (int i = 0; i < num_extents; ++i) {
      int bound = num_extents == 1 ? between(73, 200) : num_extents == 2 ? between(8, 90) : 8;
      if (few) bound = i == 0 ? between(1, 3) : between(73, 120);
      sizes_.push_back(p.extent(std::string(1, static_cast<char>('m' + i)), bound));
      bounds_.push_back(bound);
    }
    rows_ = between(40, 160);
    kind_ = &kKinds[static_cast<std::size_t>(between(0, static_cast<int>(kKinds.size()) - 1))];
    (this->*kind_->write)(p, world);
    return p.finish();
  }

  // What sort of program it is. After program().
  const char* kind() const { return kind_->name; }
  // Sizes at which conditions of slips hold, some of them where there are many. After program().
  const std::vector<std::vector<std::int64_t>>& slips_at() const { return slips_at_; }

 private:
  struct Kind {
    const char* name;
    void (RandomSizes::*write)(ProgramBuilder& p, int world);
  };
  static const std::vector<Kind> kKinds;

  int between(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random_); }
  bool chance(int percent) { return between(0, 99) < percent; }
  const Index& size() { return sizes_[static_cast<std::size_t>(between(1, 60)) % sizes_.size()]; }

  Index number(int depth) {
    if (depth == 0 || chance(15)) return chance(70) ? size() : Index(between(0, 90));
    Index a = number(depth - 1);
    switch (between(0, 8)) {
      case 0:
        return a + number(depth - 1);
      case 1:
        return a - number(depth - 1);
      case 2:
        return a * between(2, 5);
      case 3:
        return a / between(2, 9);
      case 4:
        return a % between(2, 70);
      case 5:
        return min(a, number(depth - 1));
      case 6:
        return max(a, number(depth - 1));
      case 7:
        return chance(20) ? a * size() : (a * between(2, 7)) / between(2, 9);
      default:
        return select(condition(), a, number(depth - 1));
    }
  }

  // Of which some are never so, and some at one size alone.
  Index condition() {
    Index a = chance(50) ? size() : size() * between(1, 5) / between(1, 7);
    switch (between(0, 3)) {
      case 0:
        return a < between(1, 150);
      case 1:
        return a == between(0, 150);
      case 2:
        return a % between(2, 40) == between(0, 3);
      default:
        return a * between(1, 3) <= size() + between(0, 60);
    }
  }

  // Rows of a tensor, the most at the bounds: storage is for those.
  Index extent_rows() {
    Index rows = chance(50) ? size() : ceil_div(size() * between(1, 3), between(1, 4));
    return chance(30) ? Index(rows_) : min(rows, rows_);
  }

  Index up_to(const Index& most) { return min(max(number(2), 0), most); }

  // Of a kind of program's slips one is drawn, and often a second one.
  void draw_slips(int count) {
    first_slip_ = between(0, count - 1);
    second_slip_ = chance(60) ? between(0, count - 1) : first_slip_;
  }
  // Whether a slip is drawn, in a program that has it and in its twin; whether this program has it.
  bool drawn(int slip) const { return slip == first_slip_ || slip == second_slip_; }
  bool has(int slip) const { return slips_ && drawn(slip); }

  // Of all vectors of sizes, or of some by lot, those at which `where` holds.
  std::vector<std::vector<std::int64_t>> sizes_at_which(const Index& where) {
    std::vector<std::vector<std::int64_t>> out;
    std::vector<std::int64_t> vars(sizes_.size() + 1);
    for (int i = 0, alone = static_cast<int>(bounds_[0]); i <= std::max(alone, 250); ++i) {
      for (std::size_t s = 0; s < sizes_.size(); ++s) {
        auto var = static_cast<std::size_t>(sizes_[s].node().value);
        vars.at(var) = sizes_.size() == 1 ? std::min(i, alone) : between(0, bounds_[s]);
      }
      if (eval(where, vars) != 0) out.emplace_back(vars.begin() + 1, vars.end());
      if (sizes_.size() == 1 && i == alone) break;
    }
    return out;
  }

  // Of sizes that there are, and, where that can be, of such as `shown` needs.
  Index slip_condition(const Index& shown = 1) {
    Index where;
    std::vector<std::vector<std::int64_t>> there;
    for (int tries = 0; tries < 20 && there.empty(); ++tries) {
      where = condition();
      there = sizes_at_which(where && shown);
    }
    for (int i = 0; i < 16 && !there.empty(); ++i) {
      slips_at_.push_back(there[static_cast<std::size_t>(between(0, 1'000)) % there.size()]);
    }
    return where;
  }

  // What it is, or with a slip what it is not quite at some sizes.
  Index or_slip(const Index& right, int by, const Index& shown = 1) {
    Index where = slip_condition(shown);
    return slips_ ? select(where, right + by, right) : right;
  }
  // What is done always, or with this slip not where the condition says so.
  template <typename Body>
  void unless(ProgramBuilder& p, int slip, const Index& where, const Body& body) {
    has(slip) ? p.when(!where, body) : body();
  }

  Slice from(const TensorRef& t, const Index& row) { return t.tile({row, 0}, rows_, 4); }

  // Two roles write the rows before and behind a place.
  void shared_rows(ProgramBuilder& p, int /*world*/) {
    Index all = extent_rows(), first = up_to(all);
    bool gap = chance(50);  // or an overlap
    auto in = p.input("in", DType::kF32, {rows_, 4});
    auto out = p.output("out", DType::kF32, {all, 4});
    Index second = or_slip(first, gap ? 1 : -1, gap ? first < all : first > 0);
    p.role("first", Resource::sms(1), p.range(1),
           [&](const Tile&) { p.store(from(out, 0).until_row(first), p.load(from(in, 0))); });
    p.role("second", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index row = p.let("row", max(second, 0));
      p.store(from(out, row), p.load(from(in, row)));
    });
  }

  // As many tiles as rows take.
  void counted_tiles(ProgramBuilder& p, int /*world*/) {
    int tile = between(3, 40);
    Index all = extent_rows();
    auto in = p.input("in", DType::kF32, {rows_, 4});
    auto out = p.output("out", DType::kF32, {all, 4});
    Index tiles = or_slip(ceil_div(all, tile), -1, all > 0);
    p.role("copy", Resource::sms(between(1, 2)), p.range(max(tiles, 0)), [&](const Tile& t) {
      p.store(out.tile({t.index * tile, 0}, tile, 4),
              p.load(in.tile({t.index * tile, 0}, tile, 4)));
    });
  }

  // Parts of `in` that the rank before puts into `box`, and says of each that it is there.
  struct SentParts {
    TensorRef in, box;
    SignalRef sent;  // by part
  };
  SentParts sent_parts(ProgramBuilder& p, int world, int parts) {
    auto in = p.input("in", DType::kF32, {parts, 4});
    auto box = p.buffer("box", DType::kF32, {parts, 4}, {.space = Space::kSymmetric});
    auto ready = p.signal("ready", 1), sent = p.signal("sent", parts);
    Index next = (p.rank() + 1) % world, before = (p.rank() + world - 1) % world;
    p.on_start([&] { p.notify(ready[0], before); });
    p.role("send", Resource::sms(1), p.range(parts), [&](const Tile& t) {
      p.wait(ready[0], 1);
      p.store(box.on(next).tile({t.index, 0}, 1, 4), p.load(in.tile({t.index, 0}, 1, 4)));
      p.notify(sent[t.index], next);
    });
    return {in, box, sent};
  }

  // A role reads as many parts as it has waited for; the next rank gets them.
  void thresholds(ProgramBuilder& p, int world) {
    int parts = between(1, 4);
    Index used = up_to(parts);
    const SentParts parts_in = sent_parts(p, world, parts);
    auto out = p.output("out", DType::kF32, {parts, 4});
    Index waited = or_slip(used, -1, used > 0);
    p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.loop(parts,
             [&](const Index& i) { p.when(i < waited, [&] { p.wait(parts_in.sent[i], 1); }); });
      p.store(out.tile({0, 0}, parts, 4),
              p.load(parts_in.box.tile({0, 0}, parts, 4).until_row(used)));
    });
  }

  // Tiles read the part that an entry names, after a wait for it; others, by sizes, read none. A
  // slip waits for another part, for none, or for none of those of the last entry.
  void by_tables(ProgramBuilder& p, int world) {
    int parts = between(2, 3), entries = between(1, 3), slip = between(0, 2);
    Index used = up_to(entries);
    Index where = slip_condition(slip == 2 ? used == entries : used > 0);
    auto part_of = p.table("part_of", {entries}, {ContractKind::kRange, 0, parts});
    const SentParts parts_in = sent_parts(p, world, parts);
    auto out = p.output("out", DType::kF32, {entries, 4});
    p.role("read", Resource::sms(1), p.range(entries), [&](const Tile& t) {
      Index part = p.read(part_of, {t.index});
      auto copy = [&](const TensorRef& from, const Index& row) {
        p.store(out.tile({t.index, 0}, 1, 4), p.load(from.tile({row, 0}, 1, 4)));
      };
      auto routed = [&] {
        Index wrong = slip == 0 ? (part + 1) % parts : part;
        auto wait = [&] { p.wait(parts_in.sent[slips_ ? select(where, wrong, part) : part], 1); };
        Index waits = slip == 1 ? !where : !(where && t.index == entries - 1);
        slips_&& slip > 0 ? p.when(waits, wait) : wait();
        copy(parts_in.box, part);
      };
      p.when(t.index < used, routed, [&] { copy(parts_in.in, 0); });
    });
    p.on_end([&] { p.loop(parts, [&](const Index& i) { p.wait(parts_in.sent[i], 1); }); });
  }

  // Every rank pushes its share of rows to all, which wait for all of them. A slip shows in what is
  // pushed, whether a rank's leave is waited for, or for whom.
  void pushes(ProgramBuilder& p, int world) {
    Index all = extent_rows(), share = ceil_div(all, world);
    auto in = p.input("in", DType::kF32, {rows_, 4});
    auto full = p.buffer("full", DType::kF32, {rows_ + world, 4},
                         {.space = Space::kSymmetric, .num_slots = between(1, 2)});
    auto out = p.output("out", DType::kF32, {all, 4});
    auto ready = p.signal("ready"), sent = p.signal("sent");
    draw_slips(3);
    Index skipped = slip_condition(all > 0);
    Index pushed = drawn(0) ? or_slip(share, -1, share > 0) : share;
    p.on_start([&] { p.notify_all(ready); });
    p.role("push", Resource::copy_engine(), p.range(world), [&](const Tile& t) {
      Index peer = p.let("peer", (p.rank() + t.index) % world);
      unless(p, 1, skipped, [&] { p.wait(ready, peer); });
      Index row = p.let("row", p.rank() * share);
      p.put_signal(from(full.on(peer), row).until_row(row + pushed), from(in, row), sent[p.rank()],
                   peer);
    });
    p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.loop(world,
             [&](const Index& i) { unless(p, 2, skipped && i == 0, [&] { p.wait(sent[i], 1); }); });
      p.store(from(out, 0), p.load(from(full, 0).until_row(all)));
    });
  }

  // Every rank pushes its share of rows to all, block by block; tiles that have rows wait for their
  // blocks. Where they read but one row of them, others may still wait for the rest to be over. A
  // slip shows in which blocks are waited for, which tiles do, or what is pushed.
  void gathers(ProgramBuilder& p, int world) {
    int block = between(3, 24), tile = between(3, 24);
    draw_slips(3);
    bool one_row = chance(40);
    std::int64_t most = (rows_ + world - 1) / world;
    std::int64_t blocks = (most + block - 1) / block, tiles = (most + tile - 1) / tile;
    Index all = extent_rows(), share = ceil_div(all, world), skipped = slip_condition(all > 0);
    auto rows_of = [&](const Index& rank) { return max(min(all - rank * share, share), 0); };
    auto in = p.input("in", DType::kF32, {rows_, 4});
    auto full = p.buffer("full", DType::kF32, {rows_ + world, 4},
                         {.space = Space::kSymmetric, .num_slots = between(1, 2)});
    auto out = p.output("out", DType::kF32, {one_row ? Index(world * tiles) : all, 4});
    auto ready = p.signal("ready"), sent = p.signal("sent", world * blocks);
    p.on_start([&] { p.notify_all(ready); });
    Resource pushing = chance(50) ? Resource::copy_engine() : Resource::sms(between(1, 2));
    p.role("push", pushing, p.range(world * blocks), [&](const Tile& t) {
      Index peer = p.let("peer", (p.rank() + t.index / blocks) % world);
      Index row = p.let("row", t.index % blocks * block), rows = rows_of(p.rank());
      Index pushed = drawn(0) ? or_slip(rows, -1, all > 0) : rows, first = p.rank() * share;
      p.wait(ready, peer);
      p.copy(full.on(peer).tile({first + row, 0}, block, 4).until_row(first + pushed),
             in.tile({row, 0}, block, 4).until_row(pushed));
      p.notify(sent[p.rank() * blocks + t.index % blocks], peer);
    });
    p.role("read", Resource::sms(between(1, 2)), p.range(world * tiles), [&](const Tile& t) {
      Index owner = p.let("owner", t.index / tiles), row = p.let("row", t.index % tiles * tile);
      Index rows = p.let("rows", rows_of(owner)), first = owner * share;
      Index begin = row / block, end = min((row + tile - 1) / block + 1, blocks);
      auto copy = [&] {
        p.loop(begin, end, [&](const Index& i) {
          unless(p, 1, skipped && i == end - 1, [&] { p.wait(sent[owner * blocks + i], 1); });
        });
        auto from = full.tile({first + row, 0}, one_row ? 1 : tile, 4).until_row(first + rows);
        auto to = out.tile({one_row ? t.index : first + row, 0}, one_row ? 1 : tile, 4);
        p.store(one_row ? to : to.until_row(first + rows), p.load(from));
      };
      Index there = row < (drawn(2) ? or_slip(rows, -tile, all > 0) : rows);
      one_row ? p.when(there, copy,
                       [&] {
                         p.store(out.tile({t.index, 0}, 1, 4), p.load(in.tile({0, 0}, 1, 4)));
                       })
              : p.when(there, copy);
    });
  }

  // Ranks have whole blocks of rows, all but the last that have any. Each stores those with rows to
  // all, as they are; what is beyond its rows is nobody's. A slip stores a block too few at some
  // sizes, or one that is the next rank's, or all of them one row further.
  void whole_blocks(ProgramBuilder& p, int world) {
    int block = between(3, 24);
    draw_slips(3);
    std::int64_t most = (rows_ + world - 1) / world, blocks = (most + block - 1) / block;
    Index all = extent_rows(), share = ceil_div(ceil_div(all, world), block) * block;
    auto rows_of = [&](const Index& rank) { return max(min(all - rank * share, share), 0); };
    auto in = p.input("in", DType::kF32, {world * blocks * block, 4});
    auto full = p.buffer("full", DType::kF32, {world * blocks * block + 1, 4},
                         {.space = Space::kSymmetric, .num_slots = between(1, 2)});
    auto out = p.output("out", DType::kF32, {all, 4});
    auto ready = p.signal("ready"), sent = p.signal("sent", world * blocks);
    Index further = drawn(2) ? or_slip(0, 1, all > 0) : Index(0);
    p.on_start([&] { p.notify_all(ready); });
    p.role("push", Resource::sms(between(1, 2)), p.range(world * blocks), [&](const Tile& t) {
      Index peer = p.let("peer", (p.rank() + t.index / blocks) % world);
      Index row = p.let("row", t.index % blocks * block), rows = rows_of(p.rank());
      Index first = p.rank() * share;
      Index end = drawn(0)   ? or_slip(rows, chance(50) ? -1 : -block, all > 0)
                  : drawn(1) ? or_slip(rows, block)
                             : rows;
      p.when(row < end, [&] {
        p.wait(ready, peer);
        p.store(full.on(peer).tile({first + row + further, 0}, block, 4),
                p.load(in.tile({first + row, 0}, block, 4)));
      });
      p.notify(sent[p.rank() * blocks + t.index % blocks], peer);
    });
    p.role("read", Resource::sms(between(1, 2)), p.range(world * blocks), [&](const Tile& t) {
      Index owner = p.let("owner", t.index / blocks), row = p.let("row", t.index % blocks * block);
      Index rows = p.let("rows", rows_of(owner)), first = owner * share;
      p.wait(sent[t.index], 1);
      p.when(row < rows, [&] {
        auto tile = [&](const TensorRef& of) { return of.tile({first + row, 0}, block, 4); };
        p.store(tile(out).until_row(first + rows), p.load(tile(full).until_row(first + rows)));
      });
    });
    p.on_end([&] { p.loop(world * blocks, [&](const Index& i) { p.wait(sent[i], 1); }); });
  }

  // Every rank stores its rows to all as packets, tile by tile, and everybody loads all of them. A
  // slip stores too few, or at some sizes nothing, and then nobody knows that a slot has been read.
  // Of each tile at least a row may be exchanged, as where ranks share a tile's sum.
  void packets(ProgramBuilder& p, int world) {
    int tile = between(3, 40), columns = 2 * between(1, 3);
    rows_ = std::min<std::int64_t>(rows_, 4 * tile);
    Index all = extent_rows(), some = max(all, 1);
    draw_slips(3);
    bool of_each_tile = chance(50) && !has(1);
    auto in = p.input("in", DType::kF32, {rows_, columns});
    auto box = p.buffer("box", DType::kF16, {world, rows_, columns},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
    auto out = p.output("out", DType::kF32, {all, columns});
    if (drawn(1)) slip_condition(all == 0);
    if (has(1)) some = all;
    Index stored = drawn(0) ? or_slip(some, -1) : some;
    Index loaded = drawn(2) ? or_slip(some, 1, some < rows_) : some;
    auto tiles = p.range((rows_ + tile - 1) / tile);
    auto exchange = [&](const Tile& t) {
      Index row = t.index * tile;
      auto end = [&](const Index& rows) {
        return of_each_tile ? row + max(min(rows - row, tile), 1) : rows;
      };
      p.loop(world, [&](const Index& i) {
        Index peer = p.let("peer", (p.rank() + i) % world);
        p.store_packet(box.on(peer).tile({p.rank(), row, 0}, tile, columns).until_row(end(stored)),
                       cast(p.load(in.tile({row, 0}, tile, columns)), DType::kF16));
      });
      Value sum = p.zeros(DType::kF32, tile, columns);
      p.loop(world, [&](const Index& i) {
        sum = sum + cast(p.load_packet(box.tile({i, row, 0}, tile, columns).until_row(end(loaded))),
                         DType::kF32);
      });
      p.store(out.tile({row, 0}, tile, columns), sum);
    };
    p.role("exchange", Resource::sms(between(1, 3)), tiles, exchange);
  }

  // Rows that are there are added up of parts and exchanged as packets, each under a condition of
  // its own; where there are none, one packet still goes to everybody. A slip shows in which rows
  // are made, read, stored or loaded, or leaves out that packet, and then nobody knows that a slot
  // has been read.
  void rows_if_there(ProgramBuilder& p, int world) {
    int columns = 2 * between(1, 3), parts = between(1, 3);
    draw_slips(5);
    rows_ = between(12, 60);
    // Fewer made or stored, more read or loaded.
    Index all = extent_rows(), fewer = or_slip(all, -1, all > 0), more = or_slip(all, 1);
    auto rows = [&](int i) { return !drawn(i) ? all : i == 1 || i == 3 ? more : fewer; };
    bool one_at_least = !has(4);
    if (drawn(4)) slip_condition(all == 0);
    auto in = p.input("in", DType::kF32, {rows_, columns});
    auto sums = p.buffer("sums", DType::kF32, {rows_, parts, columns});
    auto box = p.buffer("box", DType::kF32, {world, rows_, columns},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
    auto out = p.output("out", DType::kF32, {all, columns});
    auto finished = p.signal("finished", 1);
    p.role("sum", Resource::sms(between(1, 2)), p.range(parts), [&](const Tile& t) {
      p.when(rows(0) > 0, [&] {
        Slice to = sums.tile({0, t.index, 0}, rows_, columns).rows_along(0);
        p.store(to.until_row(rows(0)), p.load(in.tile({0, 0}, rows_, columns)));
      });
      p.notify(finished[0], p.rank());
    });
    p.role("combine", Resource::sms(between(1, 3)), p.range(rows_), [&](const Tile& t) {
      auto there = [&](const char* name, int i) { return p.let(name, t.index < rows(i)); };
      Index read = there("read", 1), stored = there("stored", 2), loaded = there("loaded", 3);
      p.wait(finished[0], parts);
      Slice of_row = sums.tile({t.index, 0, 0}, parts, columns);
      Value own = col_sum(p.load(of_row.until_row(read * parts)));
      p.when(one_at_least ? stored || t.index == 0 : stored, [&] {
        p.loop(world, [&](const Index& i) {
          Index peer = p.let("peer", (p.rank() + i) % world);
          p.store_packet(box.on(peer).tile({p.rank(), t.index, 0}, 1, columns), own);
        });
      });
      auto received = [&] {
        return col_sum(p.load_packet(box.tile({0, t.index, 0}, world, columns).rows_along(0)));
      };
      p.when(loaded, [&] { p.store(out.tile({t.index, 0}, 1, columns), received()); });
      if (one_at_least) p.when(loaded == 0 && t.index == 0, [&] { received(); });
    });
  }

  // Rows that all ranks have pushed are multiplied through the slots of pipes, in those of a fixed
  // number of tiles that have any, and whoever pushed them is told. A slip shows in which tiles are
  // waited for, multiplied or stored.
  void tiles_by_size(ProgramBuilder& p, int world) {
    constexpr int kTile = 16, kStep = 8;
    int tiles = between(1, 3), steps = between(1, 3);
    rows_ = tiles * kTile;
    Index all = extent_rows();
    draw_slips(4);
    auto in = p.input("in", DType::kF32, {rows_, steps * kStep});
    auto b = p.input("b", DType::kF32, {kTile, steps * kStep});
    auto full = p.buffer("full", DType::kF32, {world, rows_, steps * kStep},
                         {.space = Space::kSymmetric, .num_slots = between(1, 2)});
    auto out = p.output("out", DType::kF32, {all, world * kTile});
    auto ready = p.signal("ready"), done = p.signal("done");
    auto sent = p.signal("sent", world * tiles);
    Index slipped = or_slip(all, chance(50) ? -1 : -kTile, all > 0);
    p.on_start([&] { p.notify_all(ready); });
    p.role("push", Resource::copy_engine(), p.range(world * tiles), [&](const Tile& t) {
      Index peer = p.let("peer", (p.rank() + t.index / tiles) % world);
      Index row = p.let("row", t.index % tiles * kTile);
      p.wait(ready, peer);
      Index end = drawn(0) ? slipped : all;
      p.copy(full.on(peer).tile({p.rank(), row, 0}, kTile, steps * kStep).until_row(end),
             in.tile({row, 0}, kTile, steps * kStep).until_row(end));
      p.notify(sent[p.rank() * tiles + t.index % tiles], peer);
    });
    Resource workers = Resource::sms(between(1, 2)).pipelined(between(2, 3));
    p.role("multiply", workers, p.range(world * tiles), [&](const Tile& t) {
      Index peer = p.let("peer", t.index / tiles), row = p.let("row", t.index % tiles * kTile);
      auto wait = [&] { p.wait(sent[t.index], 1); };
      p.when(row < (drawn(1) ? slipped : all), [&] {
        drawn(2) ? p.when(row < slipped, wait) : wait();
        Value acc = p.zeros(DType::kF32, kTile, kTile);
        p.loop(steps, [&](const Index& i) {
          auto from = full.tile({peer, row, i * kStep}, kTile, kStep).until_row(all);
          acc = dot(acc, p.load(from), p.load(b.tile({0, i * kStep}, kTile, kStep)).T());
        });
        auto to = out.tile({row, peer * kTile}, kTile, kTile);
        p.store(drawn(3) ? to.until_row(slipped) : to, acc);
      });
      p.notify(done[p.rank()], peer);
    });
    p.on_end([&] { p.loop(world, [&](const Index& i) { p.wait(done[i], tiles); }); });
  }

  // Tiles that have rows are multiplied with what each rank has pushed, through slots that are
  // passed alike in every tile, behind a wait for each rank; consumers may take turns. A slip shows
  // in which tiles are there or stored, for whom they wait, or when a rank pushes.
  void sums_in_turn(ProgramBuilder& p, int world) {
    constexpr int kTile = 16, kStep = 8;
    int tiles = between(1, 3), steps = between(1, 4);
    draw_slips(4);
    rows_ = tiles * kTile;
    Index all = extent_rows(), skipped = slip_condition(all > 0);
    auto in = p.input("in", DType::kF32, {rows_, steps * kStep});
    auto b = p.input("b", DType::kF32, {kTile, steps * kStep});
    auto full = p.buffer("full", DType::kF32, {world, rows_, steps * kStep},
                         {.space = Space::kSymmetric, .num_slots = between(1, 2)});
    auto out = p.output("out", DType::kF32, {all, kTile});
    auto ready = p.signal("ready"), sent = p.signal("sent", world * tiles);
    Index slipped = or_slip(all, chance(50) ? -1 : -kTile, all > 0);
    p.on_start([&] { p.notify_all(ready); });
    p.role("push", Resource::copy_engine(), p.range(world * tiles), [&](const Tile& t) {
      Index peer = p.let("peer", (p.rank() + t.index / tiles) % world);
      Index row = p.let("row", t.index % tiles * kTile);
      unless(p, 0, skipped, [&] { p.wait(ready, peer); });
      p.copy(full.on(peer).tile({p.rank(), row, 0}, kTile, steps * kStep),
             in.tile({row, 0}, kTile, steps * kStep));
      p.notify(sent[p.rank() * tiles + t.index % tiles], peer);
    });
    Resource workers = Resource::sms(between(1, 2)).pipelined(between(2, 3));
    p.role("multiply", workers.ping_pong(between(1, 2)), p.range(tiles), [&](const Tile& t) {
      Index row = t.index * kTile;
      p.when(row < (drawn(1) ? slipped : all), [&] {
        Value acc = p.zeros(DType::kF32, kTile, kTile);
        p.loop(world, [&](const Index& source) {
          unless(p, 2, skipped && source == world - 1,
                 [&] { p.wait(sent[source * tiles + t.index], 1); });
          p.loop(steps, [&](const Index& i) {
            auto from = full.tile({source, row, i * kStep}, kTile, kStep).until_row(all);
            acc = dot(acc, p.load(from), p.load(b.tile({0, i * kStep}, kTile, kStep)).T());
          });
        });
        auto to = out.tile({row, 0}, kTile, kTile);
        p.store(drawn(3) ? to.until_row(slipped) : to, acc);
      });
    });
  }

  // Every rank pushes its share of rows to all. Tiles, as many as a table says, wait for as many
  // ranks as an entry says and multiply rows that a table picks of theirs; some of them only where
  // there are so many rows. A slip shows in what is pushed, for whom and whether leave is waited
  // for, what is read, or in what is over at a launch's end.
  void routes(ProgramBuilder& p, int world) {
    constexpr int kTile = 16, kStep = 8;
    int tiles = between(1, 3), steps = between(1, 3);
    draw_slips(6);
    bool by_rows = chance(40), for_all = chance(40);  // ranks
    Index all = extent_rows(), share = ceil_div(all, world), where = slip_condition(all > 0);
    auto used = p.table("used", {1}, {ContractKind::kAscending, 0, tiles + 1});
    auto needs = p.table("needs", {tiles}, {ContractKind::kRange, 0, world + 1});
    auto picks = p.table("picks", {tiles * kTile, 1}, {ContractKind::kRange, -1, rows_});
    auto in = p.input("in", DType::kF32, {rows_, steps * kStep});
    auto b = p.input("b", DType::kF32, {kTile, steps * kStep});
    auto full = p.buffer("full", DType::kF32, {rows_ + world, steps * kStep},
                         {.space = Space::kSymmetric, .num_slots = between(1, 2)});
    auto out = p.output("out", DType::kF32, {tiles * kTile, kTile});
    auto ready = p.signal("ready"), sent = p.signal("sent", world);
    Index pushed = drawn(0) ? or_slip(share, -1, all > 0) : share;
    auto slipped = [&](int of, const Index& wrong, const Index& right) {
      return has(of) ? select(where, wrong, right) : right;
    };
    p.on_start([&] { p.notify_all(ready); });
    p.role("push", Resource::copy_engine(), p.range(world), [&](const Tile& t) {
      Index peer = p.let("peer", (p.rank() + t.index) % world), row = p.rank() * share;
      unless(p, 5, where, [&] { p.wait(ready, peer); });
      p.copy(full.on(peer).tile({row, 0}, rows_, steps * kStep).until_row(row + pushed),
             in.tile({0, 0}, rows_, steps * kStep));
      p.notify(sent[p.rank()], peer);
    });
    Resource workers = Resource::sms(between(1, 2)).pipelined(between(2, 3));
    p.role("multiply", workers, p.range(tiles), [&](const Tile& t) {
      Value acc = p.zeros(DType::kF32, kTile, kTile);
      auto multiply = [&] {
        Index count = p.read(needs, {t.index}), waits = for_all ? Index(world) : count;
        p.loop(world, [&](const Index& source) {
          p.when(source < slipped(1, waits - 1, waits), [&] { p.wait(sent[source], 1); });
        });
        Value picked = p.load(picks.tile({t.index * kTile, 0}, kTile, 1));
        Index ranks = slipped(2, count + 1, count);
        p.loop(steps, [&](const Index& i) {
          Value rows =
              p.load_rows(full.tile({0, i * kStep}, kTile, kStep).until_row(ranks * share), picked);
          acc = dot(acc, rows, p.load(b.tile({0, i * kStep}, kTile, kStep)).T());
        });
      };
      p.when(t.index < p.read(used, {0}),
             [&] { by_rows ? p.when(t.index * kTile < all, multiply) : multiply(); });
      p.store(out.tile({t.index * kTile, 0}, kTile, kTile), acc);
    });
    p.on_end([&] {
      p.loop(world, [&](const Index& i) {
        auto wait = [&] { p.wait(sent[i], 1); };
        if (has(4)) return p.when(i < p.read(needs, {0}), wait);
        unless(p, 3, where && i == world - 1, wait);
      });
    });
  }

  // Blocks of every rank's share of rows go to all, of those without rows zeros. A slip at some
  // sizes leaves blocks out, stores them twice, does not wait for leave, or for too few of them.
  void either_way(ProgramBuilder& p, int world) {
    int block = between(3, 30);
    std::int64_t most = (rows_ + world - 1) / world;
    std::int64_t blocks = (most + block - 1) / block;
    Index all = extent_rows(), share = ceil_div(all, world);
    Index own = min(share, all - p.rank() * share);
    draw_slips(3);
    Index otherwise = drawn(0) ? or_slip(own, chance(75) ? block : -block) : own;
    Index where = slip_condition();
    bool one_condition = chance(50) && !has(0);
    auto in = p.input("in", DType::kF32, {blocks, 4});
    auto box = p.buffer("box", DType::kF32, {world, blocks, 4},
                        {.space = Space::kSymmetric, .num_slots = between(1, 2)});
    auto out = p.output("out", DType::kF32, {world, blocks, 4});
    auto ready = p.signal("ready"), sent = p.signal("sent", world);
    p.on_start([&] { p.notify_all(ready); });
    p.role("send", Resource::sms(between(1, 3)), p.range(blocks), [&](const Tile& t) {
      Index first = t.index * block;
      p.loop(world, [&](const Index& i) {
        unless(p, 1, where && i == world - 1, [&] { p.wait(ready, i); });
      });
      auto to_all = [&](bool rows) {
        p.loop(world, [&](const Index& i) {
          Index peer = p.let("peer", rows ? (p.rank() + 1 + i) % world : i);
          p.store(box.on(peer).tile({p.rank(), t.index, 0}, 1, 4),
                  rows ? p.load(in.tile({t.index, 0}, 1, 4)) : p.zeros(DType::kF32, 1, 4));
        });
      };
      if (one_condition) {
        p.when(
            first < own, [&] { to_all(true); }, [&] { to_all(false); });
      } else {
        p.when(first < own, [&] { to_all(true); });
        p.when(!(first < otherwise), [&] { to_all(false); });
      }
      p.loop(world, [&](const Index& i) { p.notify(sent[p.rank()], i); });
    });
    p.role("read", Resource::sms(1), p.range(world), [&](const Tile& t) {
      p.wait(sent[t.index], has(2) ? select(where, blocks - 1, blocks) : Index(blocks));
      p.store(out.tile({t.index, 0, 0}, blocks, 4), p.load(box.tile({t.index, 0, 0}, blocks, 4)));
    });
  }

  std::mt19937_64 random_;
  bool slips_;
  int first_slip_ = 0, second_slip_ = 0;
  std::int64_t rows_ = 1;
  const Kind* kind_ = nullptr;
  std::vector<Index> sizes_;
  std::vector<int> bounds_;
  std::vector<std::vector<std::int64_t>> slips_at_;
};

inline const std::vector<RandomSizes::Kind> RandomSizes::kKinds = {
    {"shared rows", &RandomSizes::shared_rows},
    {"counted tiles", &RandomSizes::counted_tiles},
    {"thresholds", &RandomSizes::thresholds},
    {"by tables", &RandomSizes::by_tables},
    {"pushes", &RandomSizes::pushes},
    {"gathers", &RandomSizes::gathers},
    {"whole blocks", &RandomSizes::whole_blocks},
    {"packets", &RandomSizes::packets},
    {"rows if there", &RandomSizes::rows_if_there},
    {"tiles by size", &RandomSizes::tiles_by_size},
    {"sums in turn", &RandomSizes::sums_in_turn},
    {"routes", &RandomSizes::routes},
    {"either way", &RandomSizes::either_way},
};

}  // namespace stretto::sample
