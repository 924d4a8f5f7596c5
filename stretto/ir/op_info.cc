#include "stretto/ir/op_info.h"

#include <array>
#include <string_view>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

using C = OpCode;
// code, name, result, operands min..max, exprs min..max, regions, bodies, tile level, schedule
// level, synchronises
constexpr std::array kOps = {
    OpInfo{C::kLet, "let", false, 0, 0, 1, 1, 0, 0, true, true, false},
    OpInfo{C::kFill, "fill", true, 0, 0, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kIota, "iota", true, 0, 0, 1, 1, 0, 0, true, true, false},
    OpInfo{C::kSplat, "splat", true, 0, 0, 1, 1, 0, 0, true, true, false},
    OpInfo{C::kLoad, "load", true, 0, 0, 0, 0, 1, 0, true, true, false},
    OpInfo{C::kLoadRows, "load_rows", true, 1, 1, 0, 0, 1, 0, true, true, false},
    OpInfo{C::kDot, "dot", true, 3, 3, 0, 2, 0, 0, true, true, false},
    OpInfo{C::kDotScaled, "dot_scaled", true, 5, 5, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kUnary, "unary", true, 1, 1, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kBinary, "binary", true, 2, 2, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kWhere, "where", true, 3, 3, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kCast, "cast", true, 1, 1, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kTranspose, "transpose", true, 1, 1, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kBroadcast, "broadcast", true, 1, 1, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kReduce, "reduce", true, 1, 1, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kCopyValue, "copy_value", true, 1, 1, 0, 0, 0, 0, true, true, false},
    OpInfo{C::kColumns, "columns", true, 1, 1, 1, 1, 0, 0, true, true, false},
    OpInfo{C::kStore, "store", false, 1, 1, 0, 0, 1, 0, true, true, false},
    OpInfo{C::kStoreRows, "store_rows", false, 2, 2, 0, 0, 1, 0, true, true, false},
    OpInfo{C::kReduceStore, "reduce_store", false, 1, 1, 0, 0, 1, 0, true, true, false},
    OpInfo{C::kCopy, "copy", false, 0, 0, 0, 0, 2, 0, true, true, false},
    OpInfo{C::kStorePacket, "store_packet", false, 1, 1, 0, 0, 1, 0, true, true, true},
    OpInfo{C::kLoadPacket, "load_packet", true, 0, 0, 0, 0, 1, 0, true, true, true},
    OpInfo{C::kFence, "fence", false, 0, 0, 0, 0, 0, 0, true, true, true},
    OpInfo{C::kNotify, "notify", false, 0, 0, 3, 3, 0, 0, true, true, true},
    OpInfo{C::kWait, "wait", false, 0, 0, 2, 3, 0, 0, true, true, true},
    OpInfo{C::kLoop, "loop", false, 0, 0, 2, 2, 0, 1, true, true, false},
    OpInfo{C::kWhen, "when", false, 0, 0, 1, 1, 0, 2, true, true, false},
    OpInfo{C::kProducerTileNotify, "producer_tile_notify", false, 0, 0, 1, 1, 0, 0, true, false,
           true},
    OpInfo{C::kConsumerTileWait, "consumer_tile_wait", false, 0, 0, 2, 2, 0, 0, true, false, true},
    OpInfo{C::kPipePut, "pipe_put", false, 0, 1, 0, 0, 1, 0, false, true, true},
    OpInfo{C::kPipeFill, "pipe_fill", false, 1, 1, 1, 1, 0, 0, false, true, true},
    OpInfo{C::kPipeGet, "pipe_get", true, 0, 0, 0, 1, 0, 0, false, true, true},
    OpInfo{C::kPipeRelease, "pipe_release", false, 0, 0, 0, 0, 0, 0, false, true, true},
    OpInfo{C::kDotAsync, "dot_async", true, 3, 3, 0, 2, 0, 0, false, true, false},
    OpInfo{C::kAwait, "await", false, 0, 0, 1, 1, 0, 0, false, true, false},
    OpInfo{C::kArrive, "arrive", false, 0, 0, 0, 0, 0, 0, false, true, true},
    OpInfo{C::kBarrierSync, "barrier_sync", false, 0, 0, 0, 0, 0, 0, false, true, true},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    if (kOps[i].code != static_cast<OpCode>(i)) return false;
  }
  return kOps.size() == static_cast<std::size_t>(C::kBarrierSync) + 1;
}
static_assert(in_order(), "kOps lists every OpCode, in order");

constexpr std::array kUnary = {"neg",  "abs",     "exp",  "exp2", "log", "sqrt",  "rsqrt", "recip",
                               "tanh", "sigmoid", "silu", "sin",  "cos", "floor", "round", "not"};
constexpr std::array kBinary = {"add", "sub", "mul", "div", "max", "min", "lt",
                                "le",  "eq",  "ne",  "gt",  "ge",  "and", "or"};
constexpr std::array kReduce = {"sum", "max", "min", "argmax"};
constexpr std::array kMode = {"p2p", "broadcast", "local"};
constexpr std::array kResource = {"sms", "copy_engine", "host"};
constexpr std::array kProducts = {"ahead", "ahead_in_turn", "in_turn", "awaited"};
constexpr std::array kTensor = {"input", "output", "buffer", "state"};

template <typename Table, typename Enum>
const char* lookup(const Table& table, Enum value) {
  auto idx = static_cast<std::size_t>(value);
  STRETTO_CHECK(idx < table.size(), "enumerator out of range");
  return table[idx];
}

}  // namespace

const OpInfo& op_info(OpCode code) {
  auto idx = static_cast<std::size_t>(code);
  STRETTO_CHECK(idx < kOps.size(), "operation code out of range");
  return kOps[idx];
}

const OpInfo* find_op(std::string_view op_name) {
  for (const OpInfo& info : kOps) {
    if (op_name == info.name) return &info;
  }
  return nullptr;
}

const char* name(UnaryOp op) { return lookup(kUnary, op); }
const char* name(BinaryOp op) { return lookup(kBinary, op); }
const char* name(ReduceOp op) { return lookup(kReduce, op); }
const char* name(NotifyMode mode) { return lookup(kMode, mode); }
const char* name(ResourceKind kind) { return lookup(kResource, kind); }
const char* name(ProductOrder products) { return lookup(kProducts, products); }
const char* name(TensorKind kind) { return lookup(kTensor, kind); }

}  // namespace stretto
