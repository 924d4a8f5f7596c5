#include "stretto/step/runner.h"

#include <fmt/format.h>

#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/step/check.h"

namespace stretto::step {
namespace {

Plan checked(Plan plan) {
  check(plan);
  return plan;
}

}  // namespace

Runner::Runner(Plan plan, Sharing sharing, bool poison)
    : plan_(checked(std::move(plan))), memory_(assign(plan_, sharing)) {
  for (const Buffer& b : plan_.buffers) index_.emplace(b.name, static_cast<int>(index_.size()));
  if (poison) unneeded_ = step::unneeded(plan_, memory_);
}

void Runner::run(const std::string& section, const std::vector<std::int64_t>& values) {
  const Section* found = plan_.find_section(section);
  STRETTO_CHECK(found != nullptr, "a step without a section " + section);
  STRETTO_CHECK(values.size() == plan_.extents.size(), "a step with too few extents");
  for (std::size_t i = 0; i < values.size(); ++i) {
    STRETTO_CHECK(values[i] >= 0 && values[i] <= plan_.extents[i].bound,
                  fmt::format("a step with {} = {}, its bound is {}", plan_.extents[i].name,
                              values[i], plan_.extents[i].bound));
  }
  run_section(*found, values);
}

std::span<const std::int64_t> Runner::extents_of(const Node& node,
                                                 const std::vector<std::int64_t>& values) {
  extents_.clear();
  for (const Size& size : node.extents) extents_.push_back(eval(size, values));
  return extents_;
}

int Runner::index_of(const std::string& buffer) const {
  auto found = index_.find(buffer);
  STRETTO_CHECK(found != index_.end(), "a step without a buffer " + buffer);
  return found->second;
}

const std::vector<Range>& Runner::unneeded(std::size_t node) const {
  static const std::vector<Range> kNone;
  return unneeded_.empty() ? kNone : unneeded_[node];
}

}  // namespace stretto::step
