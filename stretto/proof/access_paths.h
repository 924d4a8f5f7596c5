// The ways in which generated code may make an access: by the agent's threads, and where layouts
// allow it by TMA. The proof looks at all of them.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "stretto/proof/access_index.h"
#include "stretto/proof/happens_before.h"

namespace stretto {

class AccessPaths {
 public:
  // What has to be over of the access, and who makes it: one entry per way.
  std::vector<Past> pasts(const InstanceGraph& graph, const AccessRef& ref);
  std::vector<Path> paths(const InstanceGraph& graph, const AccessRef& ref);
  bool bulk(const InstanceGraph& graph, const AccessRef& ref);

 private:
  std::unordered_map<const Op*, bool> bulk_;
};

// Why `holds` is not: which step of which synchronisation is missing for accesses that are in order
// as far as time goes. Empty where no single row would help.
std::string missing_steps(const HappensBefore& order, const SyncTable& table, Past past, Path path,
                          const HappensBefore::Holds& holds);

}  // namespace stretto
