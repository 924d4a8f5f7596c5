#include <algorithm>

#include "stretto/ops/attention/attention_shapes.h"

namespace stretto {
namespace {

using Default = SequenceAttentionConfig (*)(const SequenceAttentionDesc&, Target);

SequenceAttentionConfig config_of(const SequenceAttentionDesc& d, Target target,
                                  Default default_of) {
  SequenceAttentionConfig c = default_of(d, target);
  if (target == Target::kCuda) return c;
  c.tile_rows = std::min<std::int64_t>(2, c.tile_rows);
  c.tile_kv = std::min<std::int64_t>(3, c.tile_kv);
  c.comm_rows = std::min<std::int64_t>(2, c.comm_rows);
  if (default_of != default_ring_config) c.num_queues = 2;
  c.num_workers = 2;
  c.head_group = d.num_heads % 2 == 0 ? d.num_heads / 2 : 0;
  return c;
}

std::vector<OpShape> sequence_shapes(int world_size) {
  return {{.world_size = world_size, .m = 4 * world_size + 3, .n = 3, .k = 4},
          {.world_size = world_size, .m = 14, .n = 4, .k = 16, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 33, .n = 4, .k = 8},
          {.world_size = world_size, .m = 25, .n = 4, .k = 8}};
}

// Four ranks and more also run the form of the ring that is not the default, with a window.
std::vector<OpShape> ring_shapes(int world_size) {
  std::vector<OpShape> all = sequence_shapes(world_size);
  OpShape other{.world_size = world_size, .m = 35, .n = 4, .k = 8, .test_config = true};
  if (world_size > 3) all.insert(all.end() - 1, other);
  return all;
}

OpShape large_sequence() { return {.m = 16384, .n = 32, .k = 128, .dtype = DType::kBF16}; }

OperatorInfo sequence_info(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .program =
              [=](const OpShape& s) { return sequence_program(name, sequence_desc(s), s.target); },
          .shapes = sequence_shapes,
          .large = large_sequence()};
}

}  // namespace

// m: tokens of all ranks; n: heads of queries; k: head size.
SequenceAttentionDesc sequence_desc(const OpShape& s) {
  SequenceAttentionDesc d{.dtype = s.dtype, .world_size = s.world_size};
  d.m = s.m > 0 ? s.m : 64;
  d.num_heads = s.n > 0 ? static_cast<int>(s.n) : 4;
  d.num_kv_heads = d.num_heads % 4 == 0 ? d.num_heads / 4 : d.num_heads % 2 == 0 ? 2 : 1;
  d.head_dim = s.k > 0 ? s.k : 32;
  d.causal = d.num_heads % 3 != 0;                       // three heads test that all see all
  if (d.causal && d.m % 5 == 0) d.window = d.m / 4 + 1;  // fives a window
  d.lse = d.m % 2 == 1;
  d.contiguous = d.m % 33 == 0;  // multiples of 33 contiguous shards
  return d;
}

int ring_slots(const SequenceAttentionDesc& d, const OpShape& s) {
  int by_default = default_ring_config(d, s.target).num_slots;
  if (!s.test_config) return by_default;
  return by_default == 2 ? d.world_size - 1 : 2;
}

Program sequence_program(const std::string& name, const SequenceAttentionDesc& d, Target target) {
  return name == "sequence_attention"
             ? sequence_attention(d, config_of(d, target, default_config))
             : token_ring(d, config_of(d, target, default_token_ring_config));
}

Program ring_program(const SequenceAttentionDesc& d, Target target, int num_slots) {
  SequenceAttentionConfig c = config_of(d, target, default_ring_config);
  c.num_slots = num_slots;
  return ring_attention(d, c);
}

OperatorInfo sequence_attention_info() {
  return sequence_info("sequence_attention",
              "causal GQA attention of m tokens spread over the ranks, n heads of size k; copy "
              "engines send keys and values");
}

OperatorInfo ring_attention_info() {
  OperatorInfo op = sequence_info("ring_attention",
                         "causal GQA attention of m tokens spread over the ranks, n heads of size "
                         "k; keys and values travel around the ring");
  op.program = [](const OpShape& s) {
    SequenceAttentionDesc d = sequence_desc(s);
    return ring_program(d, s.target, ring_slots(d, s));
  };
  op.shapes = ring_shapes;
  return op;
}

OperatorInfo token_ring_info() {
  return sequence_info("token_ring",
              "causal GQA attention of m tokens spread over the ranks, n heads of size k; queries "
              "go from rank to rank, sums come back");
}

}  // namespace stretto
