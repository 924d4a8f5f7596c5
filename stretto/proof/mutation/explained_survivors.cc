#include "stretto/proof/mutation/explained_survivors.h"

#include <fnmatch.h>

namespace stretto {

const std::vector<Explanation>& explanations() {
  static const std::vector<Explanation> all = {
      {"none", "none", "none", "none"},
  };
  return all;
}

bool explains(const Explanation& explanation, const Survivor& survivor) {
  auto matches = [](const char* pattern, const std::string& text) {
    return fnmatch(pattern, text.c_str(), 0) == 0;
  };
  return matches(explanation.label, survivor.label) && matches(explanation.kind, survivor.kind) &&
         matches(explanation.site, survivor.site);
}

const Explanation* find_explanation(const Survivor& survivor) {
  for (const Explanation& e : explanations()) {
    if (explains(e, survivor)) return &e;
  }
  return nullptr;
}

}  // namespace stretto
