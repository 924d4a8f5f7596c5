// How much of what a role reads comes from HBM and how much from the L2 cache. The tiles that
// run at the same time (one per worker) read a box of memory once, whoever of them needs it; what
// they leave in the cache serves the tiles after them, unless all of their boxes do not fit: loops
// over k walk through their boxes in step, so an overflowing cache keeps nothing of use.
// Tiles that wait for a signal before they read are behind those of their wave that do not: what
// those have read they find only where half of the cache holds it, since each half of it serves
// half of the SMs.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "stretto/predict/frame.h"
#include "stretto/predict/timetable.h"

namespace stretto::predict {

class L2Model {
 public:
  L2Model(double bytes, int num_workers) : bytes_(bytes), num_workers_(num_workers) {}

  struct Reader {
    std::int64_t tile = 0;  // of the role
    int work = 0;
    bool waited = false;  // for a signal, in this tile
  };
  void add(const Reader& reader, const std::vector<Read>& reads, const Program& program);
  // Adds what comes from HBM to the works' demands on `resource`.
  void charge(int resource, std::vector<Work>& works);

 private:
  struct Touch {
    std::int64_t wave;
    bool waited;
    int work;
    std::uint64_t key;  // tensor and corner of the box
    double footprint, bytes;
  };
  struct Line {
    std::uint64_t key;
    double bytes;
  };

  using Boxes = std::unordered_map<std::uint64_t, double>;
  // Bytes of the wave that are not in the cache; they are afterwards, if everything fits.
  double fetch(const Boxes& boxes, const std::vector<std::uint64_t>& order);
  // Of these, bytes that are read once more: tiles ahead have read them, and half of the cache does
  // not hold all that those have read.
  double read_again(const Boxes& boxes, const Boxes& ahead) const;

  double bytes_;
  int num_workers_;
  std::vector<Touch> touches_;
  std::list<Line> cached_;  // most recently used first
  std::unordered_map<std::uint64_t, std::list<Line>::iterator> where_;
  double used_ = 0;
};

}  // namespace stretto::predict
