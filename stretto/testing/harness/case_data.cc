#include "stretto/testing/harness/case_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

bool is_result(const Tensor& tensor) {
  return tensor.kind == TensorKind::kOutput || tensor.kind == TensorKind::kState;
}

bool names(const std::vector<std::string>& all, const std::string& name) {
  return std::ranges::find(all, name) != all.end();
}

// By how much elements of a tensor may differ from what is expected (op_case.h).
class Allowed {
 public:
  Allowed(const OpCase& c, std::size_t rank, std::size_t t)
      : tolerance_(c.tolerance), scale_(c.scale), want_(c.expected[rank][t]) {
    const Tensor& tensor = c.program.tensors[t];
    if (auto found = c.scales.find(tensor.name); found != c.scales.end())
      scales_ = &found->second[rank];
    if (!is_float(tensor.dtype) || names(c.exact, tensor.name)) tolerance_ = 0;
    if (tensor.kind == TensorKind::kState) {
      find_rows_that_stay(c.inputs[rank][t], bound_shape(c.program, static_cast<int>(t)));
    }
  }

  double difference(std::size_t element) const {
    if (!stays_.empty() && stays_[element / row_]) return 0;
    if (std::isinf(want_[element])) return 0;
    return tolerance_ *
           (std::fabs(want_[element]) + (scales_ != nullptr ? (*scales_)[element] : scale_));
  }

 private:
  // Whole rows: one element may be as it was by chance.
  void find_rows_that_stay(const Values& was, const std::vector<std::int64_t>& shape) {
    if (was.size() != want_.size() || shape.empty() || shape.back() < 4) return;
    row_ = static_cast<std::size_t>(shape.back());
    for (std::size_t i = 0; i < was.size(); i += row_) {
      auto first = static_cast<std::ptrdiff_t>(i), end = static_cast<std::ptrdiff_t>(i + row_);
      stays_.push_back(std::equal(want_.begin() + first, want_.begin() + end, was.begin() + first));
    }
  }

  double tolerance_, scale_;
  const Values* scales_ = nullptr;
  const Values& want_;
  std::size_t row_ = 1;
  std::vector<bool> stays_;  // by row; empty: none is known to
};

// What references say of a tensor, of all ranks and cases together.
struct Said {
  bool everywhere = true;       // a value or NaN for every element
  bool expected = false;        // where launches have rows
  std::size_t elements = 0;     // at the bounds
  std::size_t compared = 0;     // of these
  std::size_t not_zero = 0;     // of these
  std::size_t refuse_zero = 0;  // of these are further from it than is allowed
};

void add_said(const OpCase& c, std::size_t t, Said& said) {
  auto count = static_cast<std::size_t>(num_elements(bound_shape(c.program, static_cast<int>(t))));
  said.expected |= std::ranges::find(c.extents, 0) == c.extents.end();
  for (std::size_t r = 0; r < c.expected.size(); ++r) {
    const Values& expected = c.expected[r][t];
    if (!is_given(c.program, static_cast<int>(t), static_cast<int>(r))) {
      said.everywhere &= expected.empty();
      continue;
    }
    said.everywhere &= expected.size() == count;
    const Allowed allowed(c, r, t);
    said.elements += count;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double want = expected[i];
      if (std::isnan(want)) continue;
      ++said.compared;
      if (want == 0) continue;
      ++said.not_zero;
      if (std::fabs(want) > allowed.difference(i)) ++said.refuse_zero;
    }
  }
}

// "" or what is wrong with what the cases say of a tensor.
std::string_view unsaid(std::span<const OpCase> cases, std::size_t t) {
  Said said;
  for (const OpCase& c : cases) add_said(c, t, said);
  if (names(cases.front().unchecked, cases.front().program.tensors[t].name)) {
    return said.compared > 0 ? "is said not to be compared, and has values" : "";
  }
  if (!said.everywhere) return "has no values to compare with on some rank";
  if (said.compared == 0 && said.expected) return "has no element that is compared";
  // A launch of a few rows may have none but small sums, such as the first row of a triangle.
  constexpr std::size_t kPartThatTells = 8;
  if (said.compared * kPartThatTells < said.elements) return "";
  return said.refuse_zero * 2 < said.not_zero ? "would pass if half of it were zero" : "";
}

// Whether the element of this number of the bound shape exists in a launch's shape.
bool exists(std::size_t element, const std::vector<std::int64_t>& bound,
            const std::vector<std::int64_t>& shape) {
  auto rest = static_cast<std::int64_t>(element);
  for (std::size_t d = bound.size(); d-- > 0; rest /= bound[d]) {
    if (rest % bound[d] >= shape[d]) return false;
  }
  return true;
}

// The first element past the launch's shape that a launch has written to; none: -1.
std::int64_t written_past(const OpCase& c, int rank, std::size_t t,
                          std::span<const std::byte> first, std::span<const std::byte> left) {
  std::vector<std::int64_t> vars = initial_vars(c.program, rank, c.extents), shape;
  const Tensor& tensor = c.program.tensors[t];
  for (const Expr& dim : tensor.shape) shape.push_back(eval(dim, vars));
  const std::vector<std::int64_t> bound = bound_shape(c.program, static_cast<int>(t));
  if (shape == bound) return -1;
  const std::size_t step = size_bytes(tensor.dtype);
  for (std::size_t i = 0; i * step < left.size(); ++i) {
    if (exists(i, bound, shape)) continue;
    if (!std::ranges::equal(left.subspan(i * step, step), first.subspan(i * step, step))) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

std::vector<std::byte> bytes_at_first(const OpCase& c, int rank, std::size_t t) {
  const Tensor& tensor = c.program.tensors[t];
  if (tensor.kind == TensorKind::kBuffer || !is_given(c.program, static_cast<int>(t), rank)) {
    return {};
  }
  std::vector<std::byte> bytes(storage_bytes(c.program, static_cast<int>(t)));
  if (tensor.kind == TensorKind::kOutput) {
    std::ranges::fill(bytes, std::byte{kPoison});
    return bytes;
  }
  Values values = c.inputs[static_cast<std::size_t>(rank)][t];
  std::size_t step = size_bytes(tensor.dtype);
  if (values.empty() && is_float(tensor.dtype)) {
    values =
        random_values(bytes.size() / step, tensor.dtype, 1000 * t + static_cast<std::size_t>(rank));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(tensor.dtype, bytes.data() + i * step, values[i]);
  }
  return bytes;
}

}  // namespace

TensorsAtFirst tensors_at_first(const OpCase& c, int rank) {
  TensorsAtFirst all;
  for (std::size_t t = 0; t < c.program.tensors.size(); ++t) {
    all.push_back(bytes_at_first(c, rank, t));
  }
  return all;
}

std::string check_expected(std::span<const OpCase> cases) {
  const Program& program = cases.front().program;
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    if (!is_result(program.tensors[t])) continue;
    std::string_view wrong = unsaid(cases, t);
    if (wrong.empty()) continue;
    return fmt::format("{}: '{}' {}", cases.front().config, program.tensors[t].name, wrong);
  }
  return "";
}

std::string compare_case(const OpCase& c, int rank, const TensorBytes& bytes) {
  const auto& expected = c.expected[static_cast<std::size_t>(rank)];
  for (std::size_t t = 0; t < expected.size(); ++t) {
    const Tensor& tensor = c.program.tensors[t];
    if (expected[t].empty()) continue;
    std::span<const std::byte> left = bytes(t);
    const Allowed of_tensor(c, static_cast<std::size_t>(rank), t);
    for (std::size_t i = 0; i < expected[t].size(); ++i) {
      double want = expected[t][i];
      if (std::isnan(want)) continue;
      double got = load_element(tensor.dtype, left.data() + i * size_bytes(tensor.dtype));
      double allowed = of_tensor.difference(i);
      if (got == want) continue;  // infinities, too
      if (!(std::fabs(got - want) <= allowed)) {
        return fmt::format("{}[{}] is {}, expected {} (allowed difference {:.3g})", tensor.name, i,
                           got, want, allowed);
      }
    }
  }
  return "";
}

std::string check_untouched(const OpCase& c, int rank, const TensorsAtFirst& first,
                            const TensorBytes& bytes) {
  for (std::size_t t = 0; t < first.size(); ++t) {
    const Tensor& tensor = c.program.tensors[t];
    if (tensor.kind == TensorKind::kInput && !std::ranges::equal(bytes(t), first[t])) {
      return fmt::format("a write into the input '{}'", tensor.name);
    }
    if (tensor.kind != TensorKind::kOutput || !is_given(c.program, static_cast<int>(t), rank))
      continue;
    std::int64_t past = written_past(c, rank, t, first[t], bytes(t));
    if (past >= 0) {
      return fmt::format("a write to {}[{}], which this launch's shape does not have", tensor.name,
                         past);
    }
  }
  return "";
}

std::string check_guards(std::span<const std::byte> storage, const std::string& tensor) {
  for (std::size_t i = 0; i < storage.size(); ++i) {
    bool in_guard = i < kGuardBytes || i >= storage.size() - kGuardBytes;
    if (!in_guard || storage[i] == kGuard) continue;
    return fmt::format("a write outside '{}', {} bytes from its start", tensor,
                       static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(kGuardBytes));
  }
  return "";
}

std::string FirstBits::check(const OpCase& c, const TensorBytes& bytes) {
  bool first = bits_.empty();
  bits_.resize(c.program.tensors.size());
  for (std::size_t t = 0; t < bits_.size(); ++t) {
    if (!is_result(c.program.tensors[t])) continue;
    std::span<const std::byte> now = bytes(t);
    if (first) {
      bits_[t].assign(now.begin(), now.end());
    } else if (!std::equal(now.begin(), now.end(), bits_[t].begin(), bits_[t].end())) {
      return fmt::format("the bits of '{}' differ from those of launch 0",
                         c.program.tensors[t].name);
    }
  }
  return "";
}

bool keeps_state(const Program& program) {
  return std::any_of(program.tensors.begin(), program.tensors.end(),
                     [](const Tensor& t) { return t.kind == TensorKind::kState; });
}

bool ranks_meet(const Program& schedule) {
  if (schedule.world_size == 1) return false;
  bool found = false;
  auto visit = [&](const Op& op) {
    bool tells = op.code == OpCode::kNotify && !op.exprs[1].same(Expr::var(0));
    found |= tells || op.code == OpCode::kLoadPacket;
  };
  for_each_op(schedule.on_start.body, visit);
  for_each_op(schedule.on_end.body, visit);
  for (const Role& role : schedule.roles) {
    for (const Agent& agent : role.agents) for_each_op(agent.body, visit);
  }
  return found;
}

}  // namespace stretto
