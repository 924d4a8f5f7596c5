#include "stretto/step/memory.h"

#include <algorithm>
#include <map>

namespace stretto::step {
namespace {

bool is_of_step(const Buffer& b) {
  return b.kind == BufferKind::kLocal || b.kind == BufferKind::kOutput;
}

bool has_peers(const Plan& plan, const Buffer& b) {
  return b.symmetric && (b.across_groups ? plan.num_ranks : plan.group_size) > 1;
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

// By buffer: what one node does with it.
std::map<int, Access> touched(const Plan& plan, const Node& node,
                              const std::vector<Access>& of_tensors) {
  std::map<int, Access> out;
  for (const Binding& b : node.bindings) {
    const Access& a =
        of_tensors[static_cast<std::size_t>(plan.program_of(node).find_tensor(b.tensor))];
    out[b.buffer].reads |= a.reads;
    out[b.buffer].writes |= a.writes;
  }
  return out;
}

// A section may run again: what it found when it began is there then, too.
void last_through_sections(const Plan& plan, std::vector<Life>& lives) {
  for (Life& life : lives) {
    for (const Section& s : plan.sections) {
      if (life.first < s.begin && s.begin <= life.last && life.last < s.end) life.last = s.end - 1;
    }
  }
}

bool meet(const std::vector<Life>& a, const std::vector<Life>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Life& x) {
    return std::any_of(b.begin(), b.end(),
                       [&](const Life& y) { return x.first <= y.last && y.first <= x.last; });
  });
}

}  // namespace

std::vector<Life> lives(const Plan& plan) {
  std::vector<std::vector<Access>> of_programs;
  for (const Program& p : plan.programs) of_programs.push_back(accesses(p));
  struct Open {
    std::vector<Life> lives;
    bool was_read = false;
  };
  std::map<int, Open> all;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    for (auto [buffer, access] :
         touched(plan, node, of_programs[static_cast<std::size_t>(node.program)])) {
      if (!is_of_step(plan.buffers[static_cast<std::size_t>(buffer)])) continue;
      Open& open = all[buffer];
      bool anew = !access.reads && (open.lives.empty() || open.was_read);
      if (anew || open.lives.empty()) open.lives.push_back({buffer, anew ? i : 0, i});
      open.lives.back().last = i;
      open.was_read = access.reads || (open.was_read && !anew);
    }
  }
  std::vector<Life> out;
  for (auto& [buffer, open] : all) {
    bool is_output = plan.buffers[static_cast<std::size_t>(buffer)].kind == BufferKind::kOutput;
    if (is_output) open.lives.back().last = plan.nodes.size() - 1;
    last_through_sections(plan, open.lives);
    out.insert(out.end(), open.lives.begin(), open.lives.end());
  }
  return out;
}

Memory assign(const Plan& plan, Sharing sharing) {
  Memory memory;
  std::map<int, std::vector<Life>> of_buffer;
  for (const Life& life : lives(plan)) of_buffer[life.buffer].push_back(life);
  std::vector<Place> wanted;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& b = plan.buffers[i];
    std::size_t bytes = aligned(num_bytes(plan, b));
    if (b.symmetric && (has_peers(plan, b) || !is_of_step(b))) {
      memory.symmetric_bytes += bytes;
    } else if (b.kind == BufferKind::kConstant || b.kind == BufferKind::kState) {
      continue;
    } else if (b.kind == BufferKind::kInput) {
      memory.input_bytes += bytes;
    } else {
      wanted.push_back({static_cast<int>(i), 0, bytes});
      memory.unshared_bytes += bytes;
    }
  }
  // The largest first; each as low as it fits beside those that it meets.
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const Place& a, const Place& b) { return a.bytes > b.bytes; });
  for (Place place : wanted) {
    std::vector<Place> beside;
    for (const Place& other : memory.places) {
      bool apart =
          sharing == Sharing::kByLife && !meet(of_buffer[place.buffer], of_buffer[other.buffer]);
      if (!apart) beside.push_back(other);
    }
    std::sort(beside.begin(), beside.end(),
              [](const Place& a, const Place& b) { return a.offset < b.offset; });
    for (const Place& other : beside) {
      if (place.offset + place.bytes <= other.offset) break;
      place.offset = std::max(place.offset, other.offset + other.bytes);
    }
    memory.places.push_back(place);
    memory.arena_bytes = std::max(memory.arena_bytes, place.offset + place.bytes);
  }
  return memory;
}

std::vector<std::vector<Range>> unneeded(const Plan& plan, const Memory& memory) {
  const std::vector<Life> all = lives(plan);
  std::vector<std::vector<Range>> out(plan.nodes.size());
  std::vector<bool> needed(memory.arena_bytes / kPlaceAlignment);
  for (std::size_t i = 0; i < out.size(); ++i) {
    needed.assign(needed.size(), false);
    for (const Place& p : memory.places) {
      for (const Life& life : all) {
        // What begins here has been written by nobody yet.
        if (life.buffer != p.buffer || life.first >= i || life.last < i) continue;
        std::fill_n(needed.begin() + static_cast<std::ptrdiff_t>(p.offset / kPlaceAlignment),
                    p.bytes / kPlaceAlignment, true);
      }
    }
    for (std::size_t block = 0; block < needed.size(); ++block) {
      if (needed[block]) continue;
      const std::size_t offset = block * kPlaceAlignment;
      std::vector<Range>& ranges = out[i];
      if (ranges.empty() || ranges.back().offset + ranges.back().bytes != offset) {
        ranges.push_back({offset, 0});
      }
      ranges.back().bytes += kPlaceAlignment;
    }
  }
  return out;
}

}  // namespace stretto::step
