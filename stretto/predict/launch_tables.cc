#include "stretto/predict/launch_tables.h"

#include <fmt/format.h>

#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ir/tables.h"
#include "stretto/proof/sample.h"

namespace stretto::predict {
namespace {

class KnownTables : public TableWitness {
 public:
  KnownTables(const Program& program, const std::vector<std::int64_t>& extents,
              std::vector<TableValues> known, std::unique_ptr<TableWitness> others)
      : others_(std::move(others)), values_(known.size()) {
    for (std::size_t rank = 0; rank < known.size(); ++rank) {
      auto vars = initial_vars(program, static_cast<int>(rank), extents);
      for (const Tensor& tensor : program.tensors) {
        auto& values = values_[rank].emplace_back();
        auto given = known[rank].find(tensor.name);
        if (!is_table(tensor) || given == known[rank].end()) continue;
        values.entries = std::move(given->second);
        for (const Expr& dim : tensor.shape) values.shape.push_back(eval(dim, vars));
        check(tensor, values, vars);
      }
    }
  }

  std::int64_t value(int rank, int tensor_idx, std::span<const std::int64_t> index) const override {
    const Values& table = values_.at(at(rank)).at(at(tensor_idx));
    if (table.shape.empty()) return others_->value(rank, tensor_idx, index);
    std::int64_t linear = 0;
    for (std::size_t d = 0; d < index.size(); ++d) {
      if (index[d] < 0 || index[d] >= table.shape[d]) {
        throw Rejected("a table is read outside its shape");
      }
      linear = linear * table.shape[d] + index[d];
    }
    return table.entries[at(linear)];
  }
  std::string name() const override { return "of a launch"; }

 private:
  struct Values {
    std::vector<std::int64_t> shape;  // empty: not known
    std::vector<std::int32_t> entries;
  };

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  static void check(const Tensor& tensor, const Values& values,
                    std::span<const std::int64_t> vars) {
    STRETTO_CHECK(std::ssize(values.entries) == num_elements(values.shape),
                  fmt::format("'{}' has {} entries, {} are known", tensor.name,
                              num_elements(values.shape), values.entries.size()));
    std::int64_t lo = eval(tensor.contract.lo, vars), hi = eval(tensor.contract.hi, vars);
    for (std::int64_t v : values.entries) {
      STRETTO_CHECK(v >= lo && v < hi,
                    fmt::format("'{}' is known to hold {}, not in {}..{}", tensor.name, v, lo, hi));
    }
  }

  std::unique_ptr<TableWitness> others_;
  std::vector<std::vector<Values>> values_;  // by rank and tensor
};

}  // namespace

std::unique_ptr<TableWitness> tables_of_launch(const Program& program,
                                               const std::vector<std::int64_t>& extents,
                                               const LaunchTables& known) {
  auto others = highest_tables(program, extents);
  if (!known) return others;
  return std::make_unique<KnownTables>(program, extents, known(extents), std::move(others));
}

}  // namespace stretto::predict
