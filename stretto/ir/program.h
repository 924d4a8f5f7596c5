// The program: what the embedded language records, what every pass transforms, and what the four
// readers read.
//
// Tile IR and schedule IR are the same structure at two levels. At tile level every role has one
// agent, whose body looks sequential, and the words for a tile map's channels appear as written. At
// schedule level they are resolved into notify and wait, and a role may be split into agents
// connected by pipes. verifier.h says what holds at each level; op_info.h lists every operation;
// printer.h and parser.h give both a text form.
//
// One Program describes all ranks: the rank is a variable. World size and tile shapes are
// constants.
//
// Meaning of a launch, per rank: start -> on_start -> all roles, in parallel -> on_end -> end. A
// role's tiles are the integers 0 <= t < num_tiles; worker w of W executes t = w, w + W, w + 2W,
// ... in order. `vars[role.tile_var]` is t.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/ir/expr.h"

namespace stretto {

// A place in the user's source, kept on everything a diagnostic may have to name.
struct SourceLoc {
  std::string file;
  int line = 0;
};

enum class VarKind : std::uint8_t {
  kRank,    // index 0 of Program::vars, always
  kExtent,  // a run-time size, 0 <= value <= bound, given at each launch, the same on all ranks
  kScalar,  // a run-time number of a launch without influence on synchronisation counts: an
            // integer, 0 <= value <= bound, or a float (Var::is_float)
  kTile,    // a role's linear tile index
  kLoop,    // a loop counter
  kLet,     // a named intermediate
};

struct Var {
  std::string name;
  VarKind kind;
  std::int64_t bound = 0;  // kExtent, kScalar: largest value
  // kScalar: a float32, whose value is its 32 bits as a number; a splat alone reads it, as it is.
  bool is_float = false;
};

inline constexpr std::int64_t kFloatScalarBound = 0xFFFFFFFF;
inline std::int64_t scalar_of_float(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float float_of_scalar(std::int64_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value));
}

enum class TensorKind : std::uint8_t {
  kInput,   // written by the caller before launch, read-only during it
  kOutput,  // written by the launch, every element exactly once
  kBuffer,  // private to the instance; contents do not survive a launch
  kState,   // updated in place and kept across launches; the caller owns the storage
};
enum class Space : std::uint8_t { kLocal, kSymmetric };

// What the values of an integer table promise; checked when a launch reads the table, assumed by
// the proof.
enum class ContractKind : std::uint8_t {
  kNone,
  kRange,        // lo <= value < hi
  kPermutation,  // kRange, and no value from 0 on twice; those below 0 name nothing
  kAscending,    // kRange, and each value >= the one before
  kPartition,    // kAscending, from lo to hi - 1: entries i and i + 1 bound part i of [lo, hi - 1)
};
struct Contract {
  ContractKind kind = ContractKind::kNone;
  Expr lo, hi;
};

struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  // Row-major. Entries may name extents; storage and strides are those of the extents' bounds.
  std::vector<Expr> shape;
  TensorKind kind = TensorKind::kInput;
  Space space = Space::kLocal;
  int num_slots = 1;  // kBuffer: copies used in turn, slot = epoch % num_slots
  bool packet =
      false;          // kBuffer: every 4 payload bytes travel with an epoch tag in one 8-byte store
  Contract contract;  // kI32 tensors used as tables
  // kOutput, local: a condition of the rank alone, true on the ranks that have it; absent: on all.
  // Elsewhere no launch touches it, and the caller gives no memory.
  Expr given_on;
  SourceLoc loc;
};

// A symmetric array of monotone 64-bit counters, `num_channels` of them on every rank. Within
// launch e, a wait for at_least means counter >= e * quota + at_least, where quota is what one
// launch adds to that counter (quota.h).
struct Signal {
  std::string name;
  std::int64_t num_channels = 1;
  bool per_source = false;  // channel = the notifying rank; num_channels = world size
  SourceLoc loc;
};

// TileLink's mappings of a tiled dimension (TileLink, arXiv 2503.20313, section 4.1), exact by
// interval overlap: tile -> rows f_S, tile -> rank f_R, tile -> channel f_C. Affine: the rows of
// `tensor` are split over the ranks in runs of `rows_per_rank`, each run into tiles of tile_rows,
// each rank's tiles into `channels_per_rank` channels. Table-driven: low, high, rank and channel
// are kI32 tensors of num_tiles entries, and `count` (per channel) holds how many tiles map to it;
// `low` and `high` may be one table of num_tiles + 1 entries, a partition of the rows;
// they say how routing groups tiles, for the program's own use. A table must not decide how often a
// counter is notified, so the tile primitives give every tile of such a map a channel of its own.
struct TileMap {
  std::string name;
  int tensor = -1;
  std::int64_t tile_rows = 1;
  Expr rows_per_rank;
  std::int64_t channels_per_rank = 1;
  bool table_driven = false;
  std::int64_t num_tiles = 0;  // table-driven only
  std::int64_t num_channels = 0;
  int low = -1, high = -1, rank = -1, channel = -1, count = -1;
  SourceLoc loc;
};

// A box of a tensor on one rank that a 2-D tile covers. Elements outside the tensor's run-time
// shape, or at or past row_end / col_end, are masked: they read as zero and are not written.
struct Region {
  int tensor = -1;
  Expr rank;                 // absent: the own rank
  std::vector<Expr> origin;  // one entry per tensor dimension
  int row_dim = -1;          // tensor dimension of the tile's rows; -1: the tile has one row
  int col_dim = 0;           // tensor dimension of the tile's columns
  std::int64_t rows = 1, cols = 1;
  Expr row_end, col_end;  // optional exclusive limits, in tensor coordinates
};

enum class OpCode : std::uint8_t {
  // index
  kLet,  // var = exprs[0]; the agent's only one of that variable, seen to the end of its block
  // tile values: result register = f(operands)
  kFill,       // value, [rows, cols], dtype
  kIota,       // exprs[0] + index along `axis` (0: rows [rows,1], 1: columns [1,cols]); i32
  kSplat,      // exprs[0] as a [1,1] tile of dtype
  kLoad,       // region
  kLoadRows,   // rows of region's tensor chosen by operand 0 (i32 [rows,1]); negative index: a row
               // of zeros
  kDot,        // operands acc, a, b: acc + a * b, accumulated in f32, factors in f64 in f64;
               // exprs[0], where given: the rows of a before it alone, those from it on are zero;
               // where acc has kSumColumns columns more than b, each gets the sum of a's row
  kDotScaled,  // operands acc, a, b, scale_a [rows,1], scale_b [1,cols]: acc + (a * b) * scale_a *
               // scale_b
  kUnary,      // unary
  kBinary,     // binary, operands broadcast from [r,1], [1,c], [1,1]
  kWhere,      // operands condition, then, else (broadcast)
  kCast,       // dtype
  kTranspose,  //
  kBroadcast,  // to [rows, cols]
  kReduce,     // reduce along `axis` (1: over columns -> [rows,1]; 0: over rows -> [1,cols])
  kCopyValue,  // a copy in a register of its own
  kColumns,    // the columns of operand 0 from exprs[0] on, as many as the result has
  // memory effects
  kStore,        // region = operand 0, cast to the tensor's dtype
  kStoreRows,    // rows chosen by operand 1 (i32 [rows,1]) = operand 0; a negative index is skipped
  kReduceStore,  // region += operand 0, in arrival order: not deterministic, a named exception
  kCopy,         // region2 = region, element for element (same dtype), by the agent's resource
  kStorePacket,  // packet region = operand 0, tagged with this launch's epoch
  kLoadPacket,   // waits until every packet of the region carries this launch's tag, then reads
  kFence,        // orders the worker's earlier global writes before its later reads
  // synchronisation; symbol = signal
  kNotify,  // exprs: channel, rank, amount
  kWait,  // exprs: channel, at_least (below 0: as 0), rank waited for (diagnostics; may be absent)
  // control
  kLoop,  // var over [exprs[0], exprs[1]); bodies[0]
  kWhen,  // exprs[0] != 0 ? bodies[0] : bodies[1]
  // of a tile map's channels; symbol = tile map, symbol2 = signal; tile level only
  // (passes/resolve_tile_primitives.h)
  kProducerTileNotify,  // exprs: tile; mode
  kConsumerTileWait,    // exprs: row lo, row hi
  // schedule level; symbol = pipe
  kPipePut,   // region, or rows of it that operand 0 picks -> the next free slot, asynchronously
  kPipeFill,  // the columns of operand 0 from exprs[0] on, as many as a slot has -> the next free
              // slot
  kPipeGet,   // result = the pipe's next full slot; exprs[0], where given: rows at or past it
              // lie past the end of the region that was put, and are zero
  kPipeRelease,  // the oldest slot got and not yet released becomes free
  kDotAsync,     // like kDot, completes at a later kAwait
  kAwait,        // exprs[0]: all but that many of the agent's kDotAsync have completed
  kArrive,       // symbol = named barrier of the worker
  kBarrierSync,  // symbol = named barrier of the worker
};

enum class NotifyMode : std::uint8_t { kP2P, kBroadcast, kLocal };
enum class UnaryOp : std::uint8_t {
  kNeg,
  kAbs,
  kExp,
  kExp2,
  kLog,
  kSqrt,
  kRsqrt,
  kRecip,
  kTanh,
  kSigmoid,
  kSilu,
  kSin,
  kCos,
  kFloor,
  kRound,
  kNot,
};
enum class BinaryOp : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  kLt,
  kLe,
  kEq,
  kNe,
  kGt,
  kGe,
  kAnd,
  kOr,
};
enum class ReduceOp : std::uint8_t { kSum, kMax, kMin, kArgMax };

// As many as a matrix instruction has at least.
inline constexpr std::int64_t kSumColumns = 8;

struct Op;
using Block = std::vector<Op>;

struct Op {
  OpCode code = OpCode::kLet;
  int result = -1;            // register written, an index into Agent::values
  std::vector<int> operands;  // registers read
  std::optional<Region> region, region2;
  std::vector<Expr> exprs;
  int var = -1;                   // kLet, kLoop
  int symbol = -1, symbol2 = -1;  // signal, tile map, pipe or barrier
  double value = 0;               // kFill
  int axis = 0;                   // kIota, kReduce
  NotifyMode mode = NotifyMode::kP2P;
  UnaryOp unary = UnaryOp::kNeg;
  BinaryOp binary = BinaryOp::kAdd;
  ReduceOp reduce = ReduceOp::kSum;
  int stage = 0;  // software-pipeline stage within the enclosing loop; schedule level
  std::uint32_t multicast =
      0;  // kPipePut: cluster CTAs that receive it, as a mask; 0: the own CTA alone
  std::vector<Block> bodies;
  SourceLoc loc;
};

// A register: a 2-D tile of fixed shape. Registers are variables, not single assignments: a loop
// that accumulates writes the same register again. Floats of 16 and 8 bits are held in f32 and
// rounded when the register is written.
struct ValueType {
  DType dtype = DType::kF32;
  std::int64_t rows = 1, cols = 1;
  friend bool operator==(const ValueType&, const ValueType&) = default;
};

enum class AgentKind : std::uint8_t { kBody, kProducer, kConsumer, kEpilogue };

// A part of a worker with its own program order.
struct Agent {
  std::string name;
  AgentKind kind = AgentKind::kBody;
  int num_threads = 0;    // 0: the resource decides
  int num_registers = 0;  // per thread, 0: unconstrained
  std::vector<ValueType> values;
  Block body;  // per tile
};

enum class Swizzle : std::uint8_t { kNone, k32B, k64B, k128B };

// A bounded first-in first-out queue of tiles in shared memory between agents of one worker
// (full/empty mbarriers).
struct Pipe {
  std::string name;
  ValueType type;
  int num_slots = 2;
  Swizzle swizzle = Swizzle::k128B;
  int producer = -1, consumer = -1;  // agents
  // An earlier pipe of the same producer, type and slots, whose slots these are: one queue of which
  // every consumer gets what is put for it. A put takes the next slot, once that is released, and
  // gets are in the order of puts, whoever makes them. -1: slots of its own.
  int shares = -1;
};

struct Barrier {
  std::string name;
  int num_arrivals = 2;  // agents that take part in one phase
};

enum class ResourceKind : std::uint8_t { kSm, kCopyEngine, kHost };

// How the warpgroups of an agent share the tensor core in loops whose products they take further
// (passes/stagger_products.h).
enum class ProductOrder : std::uint8_t {
  kAhead,        // each issues the next product before it awaits this one
  kAheadInTurn,  // the same, and they issue in turn
  kInTurn,       // they issue in turn, and each awaits its own at once
  kAwaited,      // each awaits its own at once
};

struct Resource {
  ResourceKind kind = ResourceKind::kSm;
  int num_workers = 1;  // SMs (CTAs or clusters), copy queues, or host threads
  int cluster_size = 1;
  // SMs: 0 keeps a role one agent; from 2 on, its loads run ahead of its arithmetic by up to this
  // many tiles per operand (passes/split_agents.h).
  int num_stages = 0;

  // Pipelined SMs: slots of what is loaded once a tile; 2: the next tile's is loaded meanwhile.
  int tile_slots = 2;

  // Pipelined SMs: agents that compute, one tile each in turn, so that one stores its result while
  // the next multiplies (ping-pong; passes/take_turns.h).
  int num_consumers = 1;

  // Pipelined SMs whose computing agent has several warpgroups: they end their main loop one after
  // another, the last so many steps alone, so that one stores its rows while the next multiplies;
  // 0: at the same time. Less than the stages, since all that while the others' slots stay full.
  int stagger = 0;

  ProductOrder products = ProductOrder::kAhead;  // pipelined SMs

  // Pipelined SMs: 0 has the computing agent store, from 1 on an agent of its own does, through a
  // pipe of so many slots (passes/epilogue_stores.h).
  int store_slots = 0;

  // Pipelined SMs: 0 has the computing agent load what is no factor of a product, from 1 on the
  // producer loads it ahead, through a pipe of so many slots: the factors', where those have as
  // many and the same shape (passes/split_agents.h).
  int load_slots = 0;

  // SMs: a worker takes the next tile when it is free, instead of every num_workers-th. Which
  // worker has a tile then depends on timing, so the role may neither wait nor notify, nor read
  // what it writes. The CPU deals the tiles out as without.
  bool tickets = false;

  // SMs: the number of a role declared before, whose blocks do this role's work, too, with a group
  // of threads of their own: its sums while that one multiplies. -1: blocks of its own. Both have
  // as many workers, and neither is in clusters; this one is neither pipelined nor by ticket, and
  // the only one beside that role.
  int beside = -1;

  static Resource sms(int n) { return {ResourceKind::kSm, n}; }
  static Resource copy_engine(int queues = 1) { return {ResourceKind::kCopyEngine, queues}; }
  static Resource host(int threads = 1) { return {ResourceKind::kHost, threads}; }
  Resource pipelined(int stages) const {
    Resource r = *this;
    r.num_stages = stages;
    return r;
  }
  Resource by_ticket(bool on = true) const {
    Resource r = *this;
    r.tickets = on;
    return r;
  }
  Resource ping_pong(int consumers) const {
    Resource r = *this;
    r.num_consumers = consumers;
    return r;
  }
  Resource staggered(int steps) const {
    Resource r = *this;
    r.stagger = steps;
    return r;
  }
  Resource holding(int slots_per_tile) const {
    Resource r = *this;
    r.tile_slots = slots_per_tile;
    return r;
  }
  Resource multiplying(ProductOrder order) const {
    Resource r = *this;
    r.products = order;
    return r;
  }
  Resource with_epilogue(int slots) const {
    Resource r = *this;
    r.store_slots = slots;
    return r;
  }
  Resource loading_ahead(int slots) const {
    Resource r = *this;
    r.load_slots = slots;
    return r;
  }
  Resource beside_role(int role) const {
    Resource r = *this;
    r.beside = role;
    return r;
  }
  // SMs that no other role has.
  int num_own_sms() const {
    return kind == ResourceKind::kSm && beside < 0 ? num_workers * cluster_size : 0;
  }
  // Workers of `size` CTAs each, which share a tile by rows.
  Resource clustered(int size) const {
    Resource r = *this;
    r.cluster_size = size;
    return r;
  }
};

struct Role {
  std::string name;
  Resource resource;
  int tile_var = -1;
  Expr num_tiles;  // may name extents; not tables
  std::vector<Agent> agents;
  std::vector<Pipe> pipes;
  std::vector<Barrier> barriers;
  SourceLoc loc;
};

// By pipe: the one whose slots it shares with others (Pipe::shares), itself among them; -1: it has
// its slots alone.
std::vector<int> rings_of(const Role& role);

enum class Level : std::uint8_t { kTile, kSchedule };

struct Program {
  std::string name;
  int world_size = 1;
  Level level = Level::kTile;
  std::vector<Var> vars;  // vars[0] is the rank
  std::vector<Tensor> tensors;
  std::vector<Signal> signals;
  std::vector<TileMap> maps;
  std::vector<Role> roles;
  Agent on_start, on_end;
  SourceLoc loc;

  // Index by name; -1 where there is none.
  int find_tensor(const std::string& tensor_name) const;
  int find_signal(const std::string& signal_name) const;
  int find_var(const std::string& var_name) const;
};

// Values for Program::vars of one rank and launch: rank and extents set, the rest zero. `extents`
// lists the kExtent and kScalar variables in the order of their declaration; UserError when the
// count or a range is wrong.
std::vector<std::int64_t> initial_vars(const Program& program, int rank,
                                       const std::vector<std::int64_t>& extents);
// As initial_vars() takes them, each at its bound; floats, which no size follows from, are 0.
std::vector<std::int64_t> extent_bounds(const Program& program);
// The float scalar that is all of an expression, as splat has it; else null.
const Var* float_scalar(const Program& program, const Expr& expr);

// Shape of a tensor at the extents' bounds: what storage is allocated for. Elements, per slot.
std::vector<std::int64_t> bound_shape(const Program& program, int tensor_idx);
std::int64_t num_elements(const std::vector<std::int64_t>& shape);
// Bytes of one rank's storage of a tensor, all slots, packet tags included.
std::size_t storage_bytes(const Program& program, int tensor_idx);
// Bytes from a tensor's first element to its last at a launch's shape, in one slot; 0 where it has
// no element. `bounds`: its bound_shape(), by which its rows lie.
std::size_t bytes_at(DType dtype, std::span<const std::int64_t> shape,
                     std::span<const std::int64_t> bounds);
// Whether a rank has the tensor.
bool is_given(const Program& program, int tensor_idx, int rank);

}  // namespace stretto
