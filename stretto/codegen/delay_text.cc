#include "stretto/codegen/delay_text.h"

#include <fmt/format.h>

#include "stretto/codegen/agent_writer.h"

namespace stretto {

std::string delays_text(const KernelDelays& delays) {
  return fmt::format(
      "#include \"stretto/device/sm90/delay.h\"\n\n__constant__ const Delays kDelays{{{}ull, "
      "{}}};\n",
      delays.seed, delays.most_cycles);
}

void AgentWriter::delay_text(const Expr& channel) {
  if (!kernel_.delays) return;
  line("pause_at_random(kDelays, rank, epoch, {}, {});", kernel_.num_pauses++,
       channel.has_value() ? expr(channel) : "-1");
}

}  // namespace stretto
