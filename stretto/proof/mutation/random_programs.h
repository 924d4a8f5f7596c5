// Small random programs for two ranks, for the tests of the proof: roles that copy, store and load
// on one or two shared buffers, with signals that are right about half of the time.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "stretto/lang/program_builder.h"

namespace stretto::sample {

class RandomProtocol {
 public:
  explicit RandomProtocol(std::uint64_t seed) : random_(seed) {}

  // A sender copies tiles into the receivers' buffer, a receiver sums them; how the buffer is
  // announced, guarded and handed back is drawn by lot.
  Program exchange() {
    ProgramBuilder p("exchange", 2);
    tiles_ = between(1, 2);
    bool pull = chance(30), credit = chance(40), two_slots = chance(40);
    auto x = p.input("x", DType::kF32, {tiles_, 1}, Space::kSymmetric);
    auto inbox = p.buffer("inbox", DType::kF32, {2 * tiles_, 1},
                          {.space = Space::kSymmetric, .num_slots = two_slots ? 2 : 1});
    auto y =
        p.output("y", DType::kF32, {tiles_, 1}, chance(20) ? Space::kSymmetric : Space::kLocal);
    auto ready = p.signal("ready");
    bool per_tile = chance(50);
    auto here = p.signal("here", per_tile ? 2 * tiles_ : 2);
    auto done = p.signal("done");
    bool announce = chance(85), guard = chance(85), hand_back = pull ? chance(90) : credit;

    if (announce) p.on_start([&] { p.notify_all(ready); });
    auto channel = [&](const Index& source, const Index& tile) {
      return per_tile ? source * tiles_ + tile : source;
    };
    p.role("send", Resource::copy_engine(workers()), p.range(2 * tiles_), [&](const Tile& t) {
      Index peer = (p.rank() + t.index / tiles_) % 2, tile = t.index % tiles_;
      if (guard && announce) p.wait(ready, chance(95) ? peer : Index(1 - peer));
      Index row = p.rank() * tiles_ + tile;
      if (pull) {
        p.get(inbox.tile({peer * tiles_ + tile, 0}, 1, 1), x.on(peer).tile({tile, 0}, 1, 1));
      } else {
        p.put(inbox.on(peer).tile({row, 0}, 1, 1), x.tile({tile, 0}, 1, 1));
      }
      if (chance(95)) {
        p.notify(here[channel(pull ? peer : p.rank(), tile)], pull ? p.rank() : peer);
      }
      if (pull && hand_back) p.notify(done, peer);
    });
    p.role("receive", Resource::sms(workers()), p.range(tiles_), [&](const Tile& t) {
      Value sum = p.zeros(DType::kF32, 1, 1);
      p.loop(2, [&](const Index& source) {
        int threshold = per_tile || chance(10) ? 1 : static_cast<int>(tiles_);
        if (chance(95)) p.wait(here[channel(source, t.index)], threshold);
        sum = sum + p.load(inbox.tile({source * tiles_ + t.index, 0}, 1, 1));
      });
      p.store(y.tile({t.index, 0}, 1, 1), sum);
      if (!pull && hand_back) p.notify_all(done);
    });
    if (hand_back && chance(90)) {
      p.on_end([&] { p.loop(2, [&](const Index& i) { p.wait(done[i], tiles_); }); });
    }
    return p.finish();
  }

  // No plan at all: operations in any order.
  Program soup() {
    ProgramBuilder p("soup", 2);
    auto x = p.input("x", DType::kF32, {2, 1}, Space::kSymmetric);
    std::vector<TensorRef> buffers;
    for (int i = 0; i < between(1, 2); ++i) {
      buffers.push_back(p.buffer("b" + std::to_string(i), DType::kF32, {2, 1},
                                 {.space = Space::kSymmetric, .num_slots = between(1, 2)}));
    }
    int num_tiles = between(1, 2);
    auto y = p.output("y", DType::kF32, {num_tiles, 1});
    std::vector<SignalRef> signals = {p.signal("s", 2), p.signal("t", 2)};
    int num_roles = between(1, 2);
    if (chance(50)) p.on_start([&] { synchronise(p, signals, 0, between(1, 2)); });
    for (int r = 0; r < num_roles; ++r) {
      p.role("role" + std::to_string(r), Resource::sms(workers()),
             p.range(r == 0 ? num_tiles : between(1, 2)), [&](const Tile& t) {
               for (int i = between(1, 4); i > 0; --i) {
                 if (chance(55)) {
                   synchronise(p, signals, t.index, 1);
                 } else {
                   touch(p, x, pick(buffers), t.index);
                 }
               }
               if (r == 0) p.store(y.tile({t.index, 0}, 1, 1), p.zeros(DType::kF32, 1, 1));
             });
    }
    if (chance(50)) p.on_end([&] { synchronise(p, signals, 0, between(1, 2)); });
    return p.finish();
  }

  int between(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random_); }
  bool chance(int percent) { return between(0, 99) < percent; }
  template <typename T>
  const T& pick(const std::vector<T>& items) {
    return items[static_cast<std::size_t>(between(0, static_cast<int>(items.size()) - 1))];
  }

 private:
  int workers() { return chance(70) ? 1 : 2; }

  Index some_channel(ProgramBuilder& p, const Index& tile) {
    switch (between(0, 3)) {
      case 0:
        return p.rank();
      case 1:
        return 1 - p.rank();
      case 2:
        return tile % 2;
      default:
        return between(0, 1);
    }
  }

  void synchronise(ProgramBuilder& p, const std::vector<SignalRef>& signals, const Index& tile,
                   int count) {
    for (int i = 0; i < count; ++i) {
      const SignalRef& signal = pick(signals);
      if (chance(50)) {
        p.wait(signal[some_channel(p, tile)], between(1, 2));
      } else {
        p.notify(signal[some_channel(p, tile)], chance(60) ? Index(1 - p.rank()) : p.rank(),
                 between(1, 2));
      }
    }
  }

  void touch(ProgramBuilder& p, const TensorRef& x, const TensorRef& buffer, const Index& tile) {
    Index rank = chance(50) ? p.rank() : Index(1 - p.rank());
    auto box = [&](const TensorRef& t) {
      return t.tile({chance(50) ? tile : Index(between(0, 1)), 0}, 1, 1);
    };
    switch (between(0, 3)) {
      case 0:
        p.store(box(buffer).on(rank), p.zeros(DType::kF32, 1, 1));
        break;
      case 1:
        p.load(box(buffer).on(rank));
        break;
      case 2:
        p.copy(box(buffer).on(rank), box(x));
        break;
      default:
        p.worker_fence();
    }
  }

  std::mt19937_64 random_;
  std::int64_t tiles_ = 1;
};

}  // namespace stretto::sample
