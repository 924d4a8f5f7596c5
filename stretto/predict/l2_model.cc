#include "stretto/predict/l2_model.h"

#include <algorithm>

namespace stretto::predict {
namespace {

std::uint64_t key_of(const Read& read) {
  // Spread, or a place in one tensor would be another place in the next.
  std::uint64_t hash = static_cast<std::uint64_t>(read.tensor + 1) * 0x9e3779b97f4a7c15u;
  for (std::int64_t lo : read.box.lo) {
    hash = (hash ^ static_cast<std::uint64_t>(lo)) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

void L2Model::add(const Reader& reader, const std::vector<Read>& reads, const Program& program) {
  for (const Read& read : reads) {
    DType dtype = program.tensors[static_cast<std::size_t>(read.tensor)].dtype;
    double footprint =
        static_cast<double>(volume(read.box)) * static_cast<double>(size_bytes(dtype));
    touches_.push_back({.wave = std::max<std::int64_t>(reader.tile, 0) / num_workers_,
                        .waited = reader.waited,
                        .work = reader.work,
                        .key = key_of(read),
                        .footprint = std::min(footprint, read.bytes),
                        .bytes = read.bytes});
  }
}

double L2Model::fetch(const Boxes& boxes, const std::vector<std::uint64_t>& order) {
  double wave_bytes = 0, missed = 0;
  for (std::uint64_t key : order) {
    double bytes = boxes.at(key);
    wave_bytes += bytes;
    auto it = where_.find(key);
    double had = it == where_.end() ? 0 : it->second->bytes;
    missed += std::max(bytes - had, 0.0);
    if (it != where_.end()) {
      used_ -= had;
      cached_.erase(it->second);
    }
    cached_.push_front({key, std::max(bytes, had)});
    where_[key] = cached_.begin();
    used_ += std::max(bytes, had);
  }
  while (used_ > bytes_ || (wave_bytes > bytes_ && !cached_.empty())) {
    used_ -= cached_.back().bytes;
    where_.erase(cached_.back().key);
    cached_.pop_back();
  }
  return missed;
}

double L2Model::read_again(const Boxes& boxes, const Boxes& ahead) const {
  double bytes = 0, again = 0;
  for (const auto& [key, size] : ahead) {
    bytes += size;
    auto it = boxes.find(key);
    if (it != boxes.end()) again += std::min(size, it->second);
  }
  return 2 * bytes > bytes_ ? again : 0;
}

void L2Model::charge(int resource, std::vector<Work>& works) {
  std::stable_sort(touches_.begin(), touches_.end(),
                   [](const Touch& a, const Touch& b) { return a.wave < b.wave; });
  for (std::size_t begin = 0; begin < touches_.size();) {
    std::size_t end = begin;
    Boxes boxes, ahead, behind;
    std::vector<std::uint64_t> order;
    double read = 0;
    for (; end < touches_.size() && touches_[end].wave == touches_[begin].wave; ++end) {
      auto [entry, added] = boxes.try_emplace(touches_[end].key, 0);
      if (added) order.push_back(touches_[end].key);
      entry->second = std::max(entry->second, touches_[end].footprint);
      double& of_group = (touches_[end].waited ? behind : ahead)[touches_[end].key];
      of_group = std::max(of_group, touches_[end].footprint);
      read += touches_[end].bytes;
    }
    double fetched = fetch(boxes, order) + read_again(behind, ahead);
    double share = read > 0 ? std::min(fetched / read, 1.0) : 0;
    for (; begin < end; ++begin) {
      const Touch& t = touches_[begin];
      if (share == 0) continue;
      std::vector<Demand>& demands = works[static_cast<std::size_t>(t.work)].demands;
      auto same = std::find_if(demands.begin(), demands.end(), [&](const Demand& d) {
        return d.resource == resource && !d.is_comm;
      });
      if (same == demands.end()) same = demands.insert(same, {.resource = resource});
      same->amount += t.bytes * share;
    }
  }
}

}  // namespace stretto::predict
