// Reductions over ranks: sums, in fp32 (of f64 in f64, of whole numbers in those) and in rank
// order, so that they are the same bits on every rank; products likewise, least and greatest. In
// worlds that a node holds all parts are loaded before the first step. And values of or for each
// rank that move alike.
#pragma once

#include <cstdint>
#include <functional>

#include "stretto/lang/program_builder.h"

namespace stretto {

// In worlds up to this size one value per rank fits into registers.
constexpr int kRanksTogether = 8;

// kAverage, kPremulSum: the sum, which its caller divides, or multiplies by a float of the launch.
// kMin, kMax: NaN is left out where there is anything else, as minimum and maximum do.
enum class Reduction : std::uint8_t { kSum, kAverage, kMin, kMax, kProduct, kPremulSum };
// "sum", "avg", "min", "max", "product", "premul_sum", as PyTorch has them.
const char* name(Reduction reduction);
bool is_sum(Reduction reduction);  // adds parts as they are
// Reduces two parts, both of type reduced_in().
Value reduced(Reduction reduction, const Value& a, const Value& b);
// In what parts of this type are reduced.
DType reduced_in(DType dtype);

using PartOfRank = std::function<Value(const Index& source)>;

// What part(r) gives, of `type`, of every rank, this one among them.
Value reduce_over_ranks(ProgramBuilder& p, Reduction reduction, const ValueType& type,
                        const PartOfRank& part);
Value sum_over_ranks(ProgramBuilder& p, const ValueType& type, const PartOfRank& part);
// The same where this rank has its own part already: part(r) is called for others only. Not
// `together`: one part after the other, as large tiles fill the registers.
Value reduce_with_own(ProgramBuilder& p, Reduction reduction, const Value& mine,
                      const PartOfRank& part, bool together = true);
Value sum_with_own(ProgramBuilder& p, const Value& mine, const PartOfRank& part,
                   bool together = true);

// For every other rank, the next one first: what `load` gives goes to `store`, all under way before
// the first is stored in worlds that a node holds.
void move_by_peer(ProgramBuilder& p, const PartOfRank& load,
                  const std::function<void(const Index& rank, const Value& value)>& store);

}  // namespace stretto
