#include "bench/gpu/overlap/overlap_sequence.h"

#include <algorithm>
#include <cmath>

#include "bench/gpu/operand_type.h"
#include "bench/gpu/overlap/overlap_buffers.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"

namespace stretto::bench {
namespace {}  // namespace

std::size_t OverlapSequence::Extent::bytes() const { return elements() * size_bytes(kDType); }

OverlapSequence::Extents OverlapSequence::extents_of(const OverlapShape& s) {
  const GemmShape& g = s.rank;
  Extent b{g.n, g.k}, product{g.m, g.n};
  switch (s.kind) {
    case OverlapKind::kAgGemm:
      return {{g.m / s.world_size, g.k}, b, product, {g.m, g.k}};
    case OverlapKind::kGemmRs:
      return {{g.m, g.k}, b, {g.m / s.world_size, g.n}, product};
    case OverlapKind::kGemmAr:
      return {{g.m, g.k}, b, product, product};
  }
  throw InternalError("overlap: unknown kind");
}

OverlapSequence::OverlapSequence(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
                                 const OverlapShape& shape, int num_sets, int library_rounds)
    : world_(world), nccl_(nccl), shape_(shape), sizes_(extents_of(shape)) {
  for (int i = 0; i < num_sets; ++i) {
    sets_.push_back({random.allocate(sizes_.a.bytes()), random.allocate(sizes_.b.bytes()),
                     allocate_poisoned(world, sizes_.out.bytes()),
                     allocate_poisoned(world, sizes_.out.bytes()),
                     allocate_poisoned(world, sizes_.between.bytes())});
  }
  for (int r = 0; r < world.size(); ++r) {
    engines_.emplace_back(world.device(r));
    begun_.emplace_back(world.device(r));
    sent_.emplace_back(world.device(r));
  }
  traffic_ = world.allocate(bytes_to_each_peer() * static_cast<std::size_t>(world.size()));
  world.synchronize();
  choose_library(library_rounds);
}

std::size_t OverlapSequence::bytes_to_each_peer() const {
  auto size = static_cast<std::size_t>(world_.size());
  switch (shape_.kind) {
    case OverlapKind::kAgGemm:
      return sizes_.a.bytes();
    case OverlapKind::kGemmRs:
      return sizes_.out.bytes();
    case OverlapKind::kGemmAr:
      return 2 * ceil_div(sizes_.out.bytes(), size);
  }
  throw InternalError("overlap: unknown kind");
}

cuda::CublasLtOperands OverlapSequence::operands(int set, int rank) const {
  const Set& s = at(set);
  auto r = static_cast<std::size_t>(rank);
  return {.a = (gathers() ? s.between : s.a).on[r].address(),
          .b = s.b.on[r].address(),
          .c = (gathers() ? s.theirs : s.between).on[r].address()};
}

void OverlapSequence::choose_library(int rounds) {
  const GemmShape& g = shape_.rank;
  if (gathers()) {  // the product's factor
    for (int set = 0; set < num_sets(); ++set) collective(set);
    world_.synchronize();
  }
  for (int r = 0; r < world_.size(); ++r) {
    cuda::CublasLtGemm& library =
        library_.emplace_back(world_.device(r), cuda::CublasLtGemmDesc{g.m, g.n, g.k, kDType});
    std::vector<cuda::CublasLtOperands> all;
    for (int set = 0; set < num_sets(); ++set) all.push_back(operands(set, r));
    library.choose(world_.device(r), world_.stream(r), all, rounds);
  }
}

void OverlapSequence::product(int set) const {
  for (int r = 0; r < world_.size(); ++r) {
    library_[static_cast<std::size_t>(r)].run(world_.stream(r), operands(set, r));
  }
}

void OverlapSequence::collective(int set) const {
  const Set& s = at(set);
  const SymmetricGpuMemory& from = gathers() ? s.a : s.between;
  const SymmetricGpuMemory& to = gathers() ? s.between : s.theirs;
  std::vector<cuda::NcclPart> parts;
  for (int r = 0; r < world_.size(); ++r) {
    auto rank = static_cast<std::size_t>(r);
    parts.push_back({&world_.stream(r), from.on[rank].address(), to.on[rank].address()});
  }
  if (gathers()) return nccl_.all_gather(parts, sizes_.a.elements(), kDType);
  if (shape_.kind == OverlapKind::kGemmRs) {
    return nccl_.reduce_scatter(parts, sizes_.out.elements(), kDType);
  }
  nccl_.all_reduce(parts, sizes_.out.elements(), kDType);
}

void OverlapSequence::run(int set) const {
  if (gathers()) collective(set);
  product(set);
  if (!gathers()) collective(set);
}

void OverlapSequence::product_beside_traffic(int set) const {
  const Set& s = at(set);
  const SymmetricGpuMemory& from = gathers() ? s.a : s.between;
  std::size_t bytes = bytes_to_each_peer();
  for (int r = 0; r < world_.size(); ++r) {
    auto rank = static_cast<std::size_t>(r);
    const cuda::Stream& engine = engines_[rank];
    world_.stream(r).record(begun_[rank]);
    engine.wait(begun_[rank]);
    for (int i = 1; i < world_.size(); ++i) {
      auto peer = static_cast<std::size_t>((r + i) % world_.size());
      CUdeviceptr to = traffic_.on[peer].address() + rank * bytes;
      engine.copy(to, from.on[rank].address(), std::min(bytes, from.on[rank].bytes()));
    }
    engine.record(sent_[rank]);
  }
  product(set);
  for (int r = 0; r < world_.size(); ++r) {
    world_.stream(r).wait(sent_[static_cast<std::size_t>(r)]);
  }
}

void OverlapSequence::load_own_collective() {
  const Extent& message = sizes_.between;
  Program program = collective_program(
      shape_.kind,
      {.dtype = kDType, .m = message.rows, .n = message.cols, .world_size = world_.size()});
  Lowered lowered = lower(program);
  const GpuTarget gpu = world_.target();
  own_ = load(prove(lowered, for_launches_of(lowered, {message.rows}, gpu)), world_,
              generate(lowered, {.target = gpu}));
  for (const Set& s : sets_) {
    Args args;
    args.tensors.resize(program.tensors.size());
    args.tensors[static_cast<std::size_t>(program.find_tensor("in"))].on =
        (gathers() ? s.a : s.between).addresses();
    args.tensors[static_cast<std::size_t>(program.find_tensor("out"))].on =
        (gathers() ? s.between : s.theirs).addresses();
    own_launches_.push_back(own_->prepare(args));
  }
}

void OverlapSequence::run_with_own(int set) const {
  Launch& own = *own_launches_.at(static_cast<std::size_t>(set));
  const std::int64_t extents[] = {sizes_.between.rows};
  if (gathers()) own.run(extents);
  product(set);
  if (!gathers()) own.run(extents);
}

Args OverlapSequence::arguments(const Program& p, int set) const {
  const Set& s = at(set);
  Args args{.tensors = std::vector<TensorArg>(p.tensors.size())};
  auto bind = [&](const char* tensor, const SymmetricGpuMemory& memory) {
    args.tensors[static_cast<std::size_t>(p.find_tensor(tensor))].on = memory.addresses();
  };
  bind("a", s.a);
  bind("b", s.b);
  bind(gathers() ? "c" : "out", s.ours);
  return args;
}

void OverlapSequence::poison_ours(int set) const {
  poison(world_, at(set).ours);
  world_.synchronize();
}

// Terms are of magnitude 1, sums of k of them of sqrt(k). Both round the result once; where ranks'
// parts are summed, each of them may round to a neighbour, at some sqrt(k) times 4.
std::string OverlapSequence::compare(int set) const {
  double magnitude = std::sqrt(static_cast<double>(shape_.rank.k));
  Tolerance allowed{
      .relative = 0x1p-7,
      .absolute = gathers() ? 0x1p-12 * magnitude : 0x1p-7 * 4 * magnitude * world_.size()};
  return compare_bf16(world_, at(set).ours, at(set).theirs, sizes_.out.cols, allowed);
}

Program collective_program(OverlapKind kind, const CollectiveDesc& desc) {
  switch (kind) {
    case OverlapKind::kAgGemm:
      return all_gather(desc, default_config(desc, Target::kCuda));
    case OverlapKind::kGemmRs:
      return reduce_scatter(desc, default_config(desc, Target::kCuda));
    case OverlapKind::kGemmAr:
      return all_reduce(desc, default_all_reduce_config(desc, Target::kCuda));
  }
  throw InternalError("overlap: unknown kind");
}

}  // namespace stretto::bench
