#include "stretto/proof/finding.h"

namespace stretto {

const char* name(FindingKind kind) {
  switch (kind) {
    case FindingKind::kRace:
      return "race";
    case FindingKind::kReuse:
      return "reuse across launches";
    case FindingKind::kUncovered:
      return "uncovered read";
    case FindingKind::kOutput:
      return "output";
    case FindingKind::kProgress:
      return "no progress";
    case FindingKind::kQuota:
      return "quota";
    case FindingKind::kOutside:
      return "outside of the tensor";
    case FindingKind::kResources:
      return "resources";
    case FindingKind::kIllFormed:
      return "ill-formed";
  }
  return "?";
}

}  // namespace stretto
