// Packets: payload that carries its own arrival flag, so that a small message needs neither a
// signal nor a fence. Every 4 payload bytes travel with a 4-byte tag (the epoch) in one 8-byte word
// that is written and read as a whole; a word with the expected tag holds the payload of that
// epoch. The low-latency protocol of small all-reduces.
//
// Words live in memory that several threads touch at once and are 8-byte aligned (InternalError
// otherwise). Payload of n bytes takes num_packets(n) words; the last is padded with zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::kernels {

constexpr std::size_t num_packets(std::size_t payload_bytes) { return (payload_bytes + 3) / 4; }

// Writes payload into dst[0 .. num_packets). Each word is a release store: who sees it also sees
// what the thread did before.
void store_packets(std::uint64_t* dst, std::span<const std::byte> payload, std::uint32_t tag);

// True when all words carry `tag`, and then fills `payload`; on false, payload holds anything. Each
// word is an acquire load.
bool try_load_packets(const std::uint64_t* src, std::span<std::byte> payload, std::uint32_t tag);

}  // namespace stretto::kernels
