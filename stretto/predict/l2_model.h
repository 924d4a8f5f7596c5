// How much of what a role reads comes from HBM and how much from the L2 cache. The tiles that
// run at the same time (one per worker) read a box of memory once, whoever of them needs it; what
// they leave in the cache serves the tiles after them, unless all of their boxes do not fit: loops
// over k walk through their boxes in step, so an overflowing cache keeps nothing of use.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "stretto/predict/frame.h"
#include "stretto/predict/plan.h"

namespace stretto::predict {

class L2Model {
 public:
  L2Model(double bytes, int num_workers) : bytes_(bytes), num_workers_(num_workers) {}

  // `tile` of the role reads these boxes in `work`.
  void add(std::int64_t tile, int work, const std::vector<Read>& reads, const Program& program);
  // Adds what comes from HBM to the works' demands on `resource`.
  void charge(int resource, std::vector<Work>& works);

 private:
  struct Touch {
    std::int64_t wave;
    int work;
    std::uint64_t key;  // tensor and corner of the box
    double footprint, bytes;
  };
  struct Line {
    std::uint64_t key;
    double bytes;
  };

  // Bytes of the wave that are not in the cache; they are afterwards, if everything fits.
  double fetch(const std::unordered_map<std::uint64_t, double>& boxes,
               const std::vector<std::uint64_t>& order);

  double bytes_;
  int num_workers_;
  std::vector<Touch> touches_;
  std::list<Line> cached_;  // most recently used first
  std::unordered_map<std::uint64_t, std::list<Line>::iterator> where_;
  double used_ = 0;
};

}  // namespace stretto::predict
