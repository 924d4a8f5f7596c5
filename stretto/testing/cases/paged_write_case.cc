// Plain reference of the write of new keys and values to the pages of a cache.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "stretto/ops/attention/attention_shapes.h"
#include "stretto/ops/attention/paged_write.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

// What one rank is given, and what its pages hold afterwards.
class PagedWriteReference {
 public:
  PagedWriteReference(OpCase& c, std::size_t rank, const PagedWriteDesc& d, std::uint64_t seed)
      : c_(c), r_(rank), d_(d), random_(seed * 983 + rank) {
    for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
      const Tensor& tensor = c.program.tensors[t];
      auto count = at(num_elements(bound_shape(c.program, static_cast<int>(t))));
      c.inputs[r_][t] = random_values(count, tensor.dtype, seed * 131 + 7 * t + 1000 * rank);
      if (tensor.kind == TensorKind::kState) c.expected[r_][t] = c.inputs[r_][t];
    }
    // Nowhere or anywhere, often the first and the last place or beside an earlier row, but never
    // where one went.
    Values& slots = in("slots");
    std::set<std::int64_t> taken;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::int64_t kind = below(6), end = d.num_pages * d.page, slot = below(end);
      if (kind == 1 && i > 0) slot = (static_cast<std::int64_t>(slots[i - 1]) + 1) % end;
      if (kind == 2) slot = below(2) * (end - 1);
      bool goes = kind != 0 && taken.insert(slot).second;
      slots[i] = goes ? static_cast<double>(slot) : -1.0;
    }
  }

  void run(std::int64_t m) {
    for (std::int64_t row = 0; row < m; ++row) {
      auto slot = static_cast<std::int64_t>(in("slots")[at(row)]);
      if (slot < 0) continue;
      for (std::int64_t head = 0; head < heads(); ++head) {
        for (const char* kind : {"k", "v"}) write(kind, row, slot, head);
      }
    }
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  Values& in(const std::string& name) { return c_.inputs[r_][at(c_.program.find_tensor(name))]; }
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }
  std::int64_t dim(const char* name, std::size_t axis) const {
    return bound_shape(c_.program, c_.program.find_tensor(name))[axis];
  }
  std::int64_t heads() const { return dim("k_pages", 0) / d_.num_pages; }

  // Of the rank's rows, those of the KV head that the queries of a head of the cache belong to:
  // queries take the cache's heads in equal runs.
  std::int64_t source(std::int64_t head) const {
    std::int64_t queries = ceil_div(std::int64_t{d_.num_heads}, std::int64_t{d_.world_size});
    std::int64_t first = static_cast<std::int64_t>(r_) * queries;
    auto kv_of = [&](std::int64_t query) {
      return std::min<std::int64_t>(query, d_.num_heads - 1) * d_.num_kv_heads / d_.num_heads;
    };
    return kv_of(first + head * queries / heads()) - kv_of(first);
  }

  Values& out(const std::string& name) {
    return c_.expected[r_][at(c_.program.find_tensor(name))];
  }

  void write(const std::string& kind, std::int64_t row, std::int64_t slot, std::int64_t head) {
    std::int64_t place = (slot / d_.page * heads() + head) * d_.page + slot % d_.page;
    auto from = in(kind + "_rows").begin() + (source(head) * d_.m + row) * d_.head_dim;
    Values values(from, from + d_.head_dim);
    if (d_.fp8) out(kind + "_scales")[at(place)] = scale(values);
    std::copy(values.begin(), values.end(), out(kind + "_pages").begin() + place * d_.head_dim);
  }

  // Makes e4m3 of a row, in the floats that the program computes with; its scale.
  static double scale(Values& row) {
    auto largest = 0x1p-100F;
    for (double v : row) largest = std::max(largest, std::abs(static_cast<float>(v)));
    float times = 448.0F / largest;
    for (double& v : row) v = static_cast<float>(v) * times;
    row = round_to(row, DType::kF8E4M3);
    return largest * static_cast<float>(1.0 / 448);
  }

  OpCase& c_;
  std::size_t r_;
  const PagedWriteDesc& d_;
  std::mt19937_64 random_;
};

OpCase paged_write_case(const OpShape& s, std::uint64_t seed, bool fp8) {
  PagedWriteDesc d = paged_write_desc(s, fp8);
  OpCase c;
  c.program = paged_write_program(s, fp8);
  std::int64_t m = s.rows.value_or(seed % 4 == 3 ? d.m / 2 : d.m);
  c.extents = {m};
  c.config = fmt::format("{} {} m={}", c.program.name, to_string(d), m);
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  c.exact = {"k_pages", "v_pages"};
  if (fp8) c.exact.insert(c.exact.end(), {"k_scales", "v_scales"});
  for (std::size_t r = 0; r < c.inputs.size(); ++r) PagedWriteReference(c, r, d, seed).run(m);
  return c;
}

}  // namespace

std::vector<OperatorCase> paged_write_cases() {
  auto of = [](bool fp8) {
    return [fp8](const OpShape& s, std::uint64_t seed) { return paged_write_case(s, seed, fp8); };
  };
  return {{"paged_write", of(false)}, {"paged_write_fp8", of(true)}};
}

}  // namespace stretto
