// One fact that several fields or files tell, as checkpoints do: "rope_theta" beside
// "rope_parameters.rope_theta", an end-of-text token in three files. What a reader takes is settled
// here, and a contradiction never passes in silence. Readers of model directories name their
// sources; whoever opened the directory prints the warnings.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {

using Warnings = std::vector<std::string>;  // one line each, without a line end

template <typename T>
struct Source {
  std::string where;       // file and field, as errors name them
  std::optional<T> value;  // nothing where the field is absent
};

// The value of the first source that has one. Each later source that tells something else becomes a
// warning that names both and what is taken. `same(taken, other)` says what counts as agreement.
template <typename T, typename Same = std::equal_to<T>>
std::optional<T> settle(const std::vector<Source<T>>& sources, Warnings& warnings, Same same = {}) {
  const Source<T>* taken = nullptr;
  for (const Source<T>& source : sources) {
    if (!source.value) continue;
    if (taken == nullptr) {
      taken = &source;
    } else if (!same(*taken->value, *source.value)) {
      warnings.push_back(fmt::format("{} is {}, but {} is {}; the first is taken", taken->where,
                                     *taken->value, source.where, *source.value));
    }
  }
  return taken == nullptr ? std::nullopt : taken->value;
}

// For facts of which neither telling can be trusted over the other: UserError where two differ.
template <typename T>
std::optional<T> agreed(const std::vector<Source<T>>& sources) {
  Warnings contradictions;
  std::optional<T> value = settle(sources, contradictions);
  if (contradictions.empty()) return value;
  std::string text = contradictions.front();
  throw UserError(text.substr(0, text.rfind(';')) + "; they must agree");
}

}  // namespace stretto
