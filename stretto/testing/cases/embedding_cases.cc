// Plain references of the embedding and the LM head over the unsplit table.
#include <fmt/format.h>

#include <algorithm>

#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/embedding/embedding_shapes.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

struct VocabCase {
  OpCase c;
  std::int64_t m, share;
  Values table;  // [vocab, hidden]

  VocabCase(const VocabDesc& d, Program program, const OpShape& s, std::uint64_t seed)
      : m(s.rows.value_or(seed % 3 == 2 ? d.m / 2 : d.m)), share(vocab_per_rank(d)) {
    c.program = std::move(program);
    c.extents = {m};
    c.config = fmt::format("{} {} m={}", c.program.name, to_string(d), m);
    c.inputs = no_values(c.program);
    c.expected = no_values(c.program);
    table = random_values(static_cast<std::size_t>(d.vocab * d.hidden), d.weight_dtype, seed);
    for (std::size_t r = 0; r < c.inputs.size(); ++r) {
      Values local(static_cast<std::size_t>(share * d.hidden), 0.0);
      std::size_t first = std::min(r * local.size(), table.size());
      std::copy_n(table.begin() + static_cast<std::ptrdiff_t>(first),
                  std::min(local.size(), table.size() - first), local.begin());
      in(r, "table") = local;
    }
  }

  Values& in(std::size_t r, const char* name) {
    return c.inputs[r][static_cast<std::size_t>(c.program.find_tensor(name))];
  }
  Values& out(std::size_t r, const char* name) {
    auto t = static_cast<std::size_t>(c.program.find_tensor(name));
    Values& values = c.expected[r][t];
    if (values.empty()) {
      values.assign(
          static_cast<std::size_t>(num_elements(bound_shape(c.program, static_cast<int>(t)))),
          kUnchecked);
    }
    return values;
  }
};

OpCase embedding_case(const OpShape& s, std::uint64_t seed) {
  VocabDesc d = vocab_desc(s);
  VocabCase v(d, embedding(d, lookup_config(d, s.target)), s, seed);
  v.c.tolerance = 0;
  Values draws = random_values(static_cast<std::size_t>(d.m), DType::kF32, seed + 5);
  Values tokens;
  for (double draw : draws)
    tokens.push_back(static_cast<double>(
        static_cast<std::int64_t>((draw + 1) / 2 * static_cast<double>(d.vocab))));
  std::int64_t rows =
      std::max<std::int64_t>(ceil_div(v.m, static_cast<std::int64_t>(d.world_size)), 1);
  // Of every second row the token is another one, which was chosen before.
  Values asked = tokens, chosen, sources;
  for (std::int64_t i = 0; i < d.chosen; ++i) {
    chosen.push_back(static_cast<double>((static_cast<std::int64_t>(seed % 7) + 3 * i) % d.vocab));
  }
  for (std::size_t i = 0; d.chosen > 0 && i < tokens.size(); ++i) {
    const bool is_chosen = i % 2 == 1;
    const std::size_t source = (i + seed) % chosen.size();
    sources.push_back(is_chosen ? static_cast<double>(source) : -1);
    if (is_chosen) asked[i] = 0, tokens[i] = chosen[source];
  }
  for (std::size_t r = 0; r < v.c.inputs.size(); ++r) {
    v.in(r, "tokens") = asked;
    if (d.chosen > 0) v.in(r, "sources") = sources, v.in(r, "chosen") = chosen;
    Values& out = v.out(r, "out");
    std::int64_t count =
        d.sequence_parallel ? ceil_div(v.m, static_cast<std::int64_t>(d.world_size)) : v.m;
    for (std::int64_t row = 0; row < count; ++row) {
      std::int64_t token_idx =
          d.sequence_parallel ? static_cast<std::int64_t>(r) * rows + row : row;
      for (std::int64_t col = 0; col < d.hidden; ++col) {
        double value = 0;
        if (token_idx < v.m) {
          auto token = static_cast<std::int64_t>(tokens[static_cast<std::size_t>(token_idx)]);
          value = v.table[static_cast<std::size_t>(token * d.hidden + col)];
        }
        out[static_cast<std::size_t>(row * d.hidden + col)] = value;
      }
    }
  }
  return std::move(v.c);
}

OpCase lm_head_case(const OpShape& s, std::uint64_t seed) {
  VocabDesc d = vocab_desc(s);
  VocabCase v(d, lm_head(d, head_config(d, s.target)), s, seed);
  v.c.tolerance = sum_tolerance(DType::kF32, d.hidden);
  Values x = random_values(static_cast<std::size_t>(d.m * d.hidden), d.dtype, seed + 9);
  for (std::size_t r = 0; r < v.c.inputs.size(); ++r) {
    v.in(r, "x") = x;
    Values& logits = v.out(r, "logits");
    for (std::int64_t row = 0; row < v.m; ++row) {
      for (std::int64_t token = 0; token < d.vocab; ++token) {
        double sum = 0;
        for (std::int64_t i = 0; i < d.hidden; ++i) {
          sum += x[static_cast<std::size_t>(row * d.hidden + i)] *
                 v.table[static_cast<std::size_t>(token * d.hidden + i)];
        }
        logits[static_cast<std::size_t>(row * d.vocab + token)] = sum;
      }
    }
  }
  return std::move(v.c);
}

}  // namespace

std::vector<OperatorCase> embedding_cases() {
  return {{"embedding", embedding_case}, {"lm_head", lm_head_case}};
}

}  // namespace stretto
