#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/predict/prediction.h"

namespace stretto::predict {
namespace {

int last_rank(const Prediction& p) {
  int rank = 0;
  double end = -1;
  for (std::size_t a = 0; a < p.timetable.agents.size(); ++a) {
    const TimetableAgent& agent = p.timetable.agents[a];
    if (agent.stage != Stage::kEnd || p.run.agents[a].end <= end) continue;
    end = p.run.agents[a].end;
    rank = agent.rank;
  }
  return rank;
}

class Lane {
 public:
  Lane(int width, double seconds) : busy_(at(width), 0), seconds_(seconds) {}

  // `sign` 1: busy; -1: a wait within it.
  void add(double begin, double end, double sign) {
    double cell = seconds_ / static_cast<double>(busy_.size());
    auto first = static_cast<std::size_t>(begin / cell);
    for (std::size_t i = first; i < busy_.size() && static_cast<double>(i) * cell < end; ++i) {
      double lo = std::max(begin, static_cast<double>(i) * cell);
      double hi = std::min(end, static_cast<double>(i + 1) * cell);
      busy_[i] += sign * std::max(hi - lo, 0.0) / cell;
    }
  }

  std::string draw(int num_workers) const {
    constexpr char kInk[] = " .:-=+*#";
    std::string out;
    for (double busy : busy_) {
      double part = std::clamp(busy / num_workers, 0.0, 1.0);
      out += kInk[part < 0.01 ? 0 : 1 + static_cast<int>(part * 6.999)];
    }
    return out;
  }

 private:
  std::vector<double> busy_;
  double seconds_;
};

}  // namespace

std::string lane_picture(const Prediction& p, int width) {
  const std::vector<Role>& roles = p.timetable.program->roles;
  int rank = last_rank(p);
  std::vector<Lane> lanes(roles.size(), Lane(width, p.run.seconds));
  for (const TimedSpan& span : p.run.spans) {
    const TimetableAgent& agent = p.timetable.agents[at(span.agent)];
    if (agent.rank != rank || agent.stage != Stage::kRoles) continue;
    AgentKind kind = roles[at(agent.role)].agents[at(agent.agent)].kind;
    if (kind == AgentKind::kProducer || kind == AgentKind::kEpilogue) continue;
    lanes[at(agent.role)].add(span.begin, span.end, span.wait == nullptr ? 1 : -1);
  }
  std::size_t longest = 0;
  for (const Role& role : roles) longest = std::max(longest, role.name.size());
  std::string out = fmt::format("rank {}, {:.4f} ms from left to right\n", rank, p.time_ms);
  for (std::size_t r = 0; r < roles.size(); ++r) {
    int workers = std::max(roles[r].resource.num_workers, 1);
    out += fmt::format("{:<{}} x {:<3} |{}|\n", roles[r].name, longest, workers,
                       lanes[r].draw(workers));
  }
  return out;
}

}  // namespace stretto::predict
