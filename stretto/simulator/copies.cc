// TMA and cp.async of the simulated GPU: copies that nobody waits for happen at any time.
#include "stretto/simulator/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "stretto/simulator/gpu_simulator.h"

namespace stretto::simulator {
namespace {

// What a GPU ends with an illegal instruction or a misaligned address.
void check(const Block& block, const TensorMap& map, std::uint32_t address, const int (&at)[3]) {
  if (map.mark != TensorMap::kMark || map.rank != 3) {
    throw Violation(block.where() + ": no map of three dimensions");
  }
  if (address % 128 != 0) {
    throw Violation(fmt::format("{}: a box at {} of shared memory", block.where(), address));
  }
  if (std::int64_t{at[0]} * map.element_bytes % 16 != 0) {
    throw Violation(fmt::format("{}: a box from column {} of {} bytes each on, no multiple of 16",
                                block.where(), at[0], map.element_bytes));
  }
}

// row(in memory or null, in shared memory from `to` on, bytes that exist) of each 16 bytes.
template <class F>
void each_unit(const TensorMap& map, const int (&at)[3], std::uint32_t to, F unit) {
  std::uint32_t row_bytes = map.box[0] * map.element_bytes;
  for (std::uint32_t z = 0; z < map.box[2]; ++z) {
    for (std::uint32_t y = 0; y < map.box[1]; ++y) {
      std::int64_t row = std::int64_t{at[1]} + y, outer = std::int64_t{at[2]} + z;
      bool exists = row >= 0 && row < map.shape(1) && outer >= 0 && outer < map.shape(2);
      unsigned char* from = map.data + row * map.strides[0] + outer * map.strides[1];
      for (std::uint32_t b = 0; b < row_bytes; b += 16) {
        std::uint32_t address =
            swizzled(to + (z * map.box[1] + y) * row_bytes + b, map.swizzle_bytes);
        std::int64_t first = std::int64_t{at[0]} * map.element_bytes + b;
        std::int64_t end = map.shape(0) * map.element_bytes;
        unit(from, exists ? first : end, end, address);
      }
    }
  }
}

std::uint32_t box_bytes(const TensorMap& map) {
  return map.box[0] * map.box[1] * map.box[2] * map.element_bytes;
}

void load_box(const Block& block, const TensorMap& map, const int (&at)[3], std::uint32_t to) {
  each_unit(
      map, at, to,
      [&](const unsigned char* row, std::int64_t first, std::int64_t end, std::uint32_t address) {
        unsigned char* shared = block.memory(address, 16);
        for (std::int64_t i = 0; i < 16; ++i) {
          bool exists = first + i >= 0 && first + i < end;
          shared[i] = exists ? row[first + i] : 0;
        }
      });
}

using Bytes = std::vector<unsigned char>;

Bytes read_box(const Block& block, const TensorMap& map, std::uint32_t from) {
  Bytes out;
  each_unit(map, {0, 0, 0}, from,
            [&](unsigned char*, std::int64_t, std::int64_t, std::uint32_t address) {
              const unsigned char* shared = block.memory(address, 16);
              out.insert(out.end(), shared, shared + 16);
            });
  return out;
}

void write_box(const TensorMap& map, const int (&at)[3], const Bytes& bytes) {
  std::size_t next = 0;
  each_unit(map, at, 0,
            [&](unsigned char* row, std::int64_t first, std::int64_t end, std::uint32_t) {
              for (std::int64_t i = 0; i < 16; ++i) {
                if (first + i >= 0 && first + i < end)
                  row[first + i] = bytes[next + static_cast<std::size_t>(i)];
              }
              next += 16;
            });
}

StoreGroup& open_group(Thread& thread) {
  if (thread.stores.empty()) thread.stores.push_back(std::make_shared<StoreGroup>());
  return *thread.stores.back();
}

}  // namespace

void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t read) {
  machine->self().copies.push_back({to, from, bytes, std::min(read, bytes)});
}

void arrive_after_copies(std::uint32_t bar) {
  Block& block = *machine->self().at;
  machine->later(block, [&block, bar, copies = std::move(machine->self().copies)] {
    for (const PendingCopy& c : copies) {
      unsigned char* to = block.memory(c.to, c.bytes);
      std::memcpy(to, c.from, c.read);
      std::memset(to + c.read, 0, c.bytes - c.read);
    }
    arrive_at(block, bar);
  });
  machine->self().copies.clear();
}

void tma_load(std::uint32_t to, const void* map, std::uint32_t bar, const int (&at)[3],
              unsigned blocks) {
  Block& own = *machine->self().at;
  const auto& m = *static_cast<const TensorMap*>(map);
  check(own, m, to, at);
  machine->yield();
  if (blocks == 0) blocks = 1u << own.in_cluster;
  for (std::size_t b = 0; b < own.cluster->blocks.size(); ++b) {
    if ((blocks >> b & 1) == 0) continue;
    machine->later(own, [&own, &m, b, to, bar, x = at[0], y = at[1], z = at[2]] {
      Block* block = own.cluster->blocks[b];
      if (block == nullptr) {
        throw Violation(own.where() + ": loads to a block of its cluster that has ended");
      }
      load_box(*block, m, {x, y, z}, to);
      complete_transactions(*block, bar, box_bytes(m));
    });
  }
}

void tma_store(const void* map, std::uint32_t from, const int (&at)[3]) {
  Thread& own = machine->self();
  Block& block = *own.at;
  const auto& m = *static_cast<const TensorMap*>(map);
  check(block, m, from, at);
  if (*std::min_element(at, at + 3) < 0) {
    throw Violation(fmt::format("{}: stores a box at {}, {}, {}, before the tensor", block.where(),
                                at[2], at[1], at[0]));
  }
  open_group(own);
  std::shared_ptr<StoreGroup> group = own.stores.back();
  ++group->unread;
  ++group->unwritten;
  auto wake = [&own] { machine->wake(own.store_waiter); };
  machine->later(block, [&block, &m, group, from, wake, x = at[0], y = at[1], z = at[2]] {
    Bytes bytes = read_box(block, m, from);
    --group->unread;
    wake();
    machine->later(block, [&m, group, wake, x, y, z, bytes = std::move(bytes)] {
      write_box(m, {x, y, z}, bytes);
      --group->unwritten;
      wake();
    });
  });
}

void tma_commit() {
  Thread& own = machine->self();
  open_group(own);
  own.stores.push_back(std::make_shared<StoreGroup>());
}

void tma_wait(std::uint32_t pending, bool written) {
  machine->yield();
  Thread& own = machine->self();
  if (own.stores.empty()) return;
  auto left = [&] {
    std::size_t committed = own.stores.size() - 1;
    for (std::size_t i = 0; i + pending < committed; ++i) {
      if ((written ? own.stores[i]->unwritten : own.stores[i]->unread) > 0) return true;
    }
    return false;
  };
  while (left()) machine->block_on(own.store_waiter, {WaitFor::What::kStores});
  while (own.stores.size() > 1 && own.stores.front()->unwritten == 0) {
    own.stores.erase(own.stores.begin());
  }
}

}  // namespace stretto::simulator
