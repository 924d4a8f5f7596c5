// GET /stats: what the engine does now, as one JSON object. The page draws it, a second at a time;
// metrics.h tells the same over hours. After completion.h.
#pragma once

#include <memory>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/server/completion.h"
#include "stretto/server/metrics.h"

namespace stretto {

// docs/guide/serving.md lists the fields. Of `open` those that came first are told one by one.
Json stats_json(const ServingEngine& engine, const Metrics::Totals& totals,
                const std::vector<std::shared_ptr<Completion>>& open);

}  // namespace stretto
