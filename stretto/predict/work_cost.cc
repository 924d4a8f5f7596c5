#include "stretto/predict/work_cost.h"

#include <algorithm>

namespace stretto::predict {
namespace {

// What the figures of this file were fitted to is in docs/performance/prediction.md, 'Why the
// defaults are what they are'.
//
// A worker beside another's products: its load takes so many times as long, behind theirs. So much
// of the time that it is busy they have not, for instruction slots and L2. A tile that they store
// takes so many times as long.
constexpr double kBesideLatency = 3.0, kBesideShare = 0.3, kBesideStores = 1.8;

// Seconds of an SM's tensor core that a byte costs of rows which threads pick for it one by one:
// instruction slots, and the power of addresses.
constexpr double kPickedShare = 7e-12;

// To fill in a byte of a slot that lies beyond its tensor takes so many times as long as to read
// one: products of 96 rows in tiles of 128 take longer than those of 128 rows.
constexpr double kOutsideBytes = 3;

class WorkMaker {
 public:
  WorkMaker(const Frame& frame, WorkKind kind, const WorkerRate& worker)
      : cost_(frame.cost), kind_(kind), worker_(worker), m_(*worker.machine) {
    overlaps_ = frame.has_async_products || kind == WorkKind::kGet;
  }

  Work run() {
    for (const RemoteBytes& r : cost_.remote) {
      remote_read_ += r.read;
      remote_written_ += r.written;
    }
    bool by_engine = worker_.by_copy_engine && cost_.num_copies > 0;
    by_engine ? engine_time() : sm_time();
    work_.uses_tensor = cost_.tensor > 0;
    demand(kTensor, cost_.tensor);
    if (worker_.beside) demand(kTensor, kBesideShare * (work_.own + work_.latency) / m_.num_sms);
    demand(kTensor, cost_.picked * kPickedShare / m_.num_sms);
    demand(kL2, cost_.read + cost_.written);
    demand(kHbm, cost_.written);
    for (const RemoteBytes& r : cost_.remote) remote_demands(r);
    if (by_engine) add(worker_.rank, kCopy, engine_seconds() * m_.copy_rate, is_remote());
    return std::move(work_);
  }

 private:
  // The first load is waited for before anything moves. Later ones make the work longer: meanwhile
  // others use what they share.
  void add_latencies() {
    bool pulls = remote_read_ > 0;
    double remote = cost_.remote_loads + (pulls ? cost_.num_copies : 0);
    double local = cost_.num_loads + (pulls ? 0 : cost_.num_copies);
    double first_remote = std::min(remote, 1.0);
    double first_local = first_remote > 0 ? 0 : std::min(local, 1.0);
    work_.remote_latency = first_remote * m_.remote_load_latency;
    double load_latency = m_.load_latency * (worker_.beside ? kBesideLatency : 1);
    work_.latency = work_.remote_latency + first_local * load_latency;
    double later_local = (local - first_local) * load_latency;
    work_.own_local += later_local;
    work_.own += later_local + (remote - first_remote) * m_.remote_load_latency;
  }

  // Every byte copied is read once, here or there.
  double engine_bytes() const { return std::max(cost_.read + remote_read_, remote_written_); }

  bool is_remote() const { return remote_read_ + remote_written_ > 0; }

  double setup() const { return std::min(m_.copy_setup, m_.copy_latency); }
  double engine_seconds() const {
    return engine_bytes() / m_.copy_rate + setup() * cost_.num_copies;
  }

  void engine_time() {
    work_.latency = (m_.copy_latency - setup()) * cost_.num_copies;
    work_.own = engine_seconds();
    if (is_remote()) {
      work_.remote_latency = work_.latency;
    } else {  // within a GPU: no communication
      work_.own_local = work_.own;
    }
  }

  void sm_time() {
    double products = cost_.tensor * m_.num_sms / (worker_.num_sms * m_.burst);
    double elementwise = cost_.vector_ops / (m_.vector_ops * worker_.num_sms);
    double compute = products + elementwise;
    if (overlaps_) compute -= m_.overlap * std::min(products, elementwise);
    compute += cost_.num_stores * m_.tile_cost * (worker_.shared ? kBesideStores : 1);
    if (kind_ != WorkKind::kPut) compute += cost_.num_steps * m_.k_step_cost;

    double filled = cost_.read + kOutsideBytes * cost_.outside;
    double read = filled / local_rate(), written = cost_.written / local_rate();
    double pulled = remote_read_ / link_rate(reads(), m_.remote_load_latency);
    double pushed = remote_written_ / link_rate(m_.push, 0);
    bool streams = cost_.num_copies > 0 || kind_ != WorkKind::kPlain;
    auto moved = [&](double r, double w) { return streams ? std::max(r, w) : r + w; };
    work_.compute = compute;
    work_.own_local = compute + moved(read, written);
    work_.own = compute + moved(read + pulled, written + pushed);
    add_latencies();
    bool only_moves = cost_.num_copies > 0 && remote_read_ + remote_written_ > 0;
    if (only_moves) {  // with free communication the data is simply there
      work_.own_local = compute;
      work_.remote_latency = work_.latency;
    }
    if (kind_ == WorkKind::kPut) {
      work_.remote_latency = remote_read_ > 0 ? m_.remote_load_latency : 0;
      work_.latency = std::max(work_.remote_latency, m_.load_latency);
    }
  }

  // Of one worker. What a pipe has in flight, over the time that one load takes (Little's law),
  // bounds what a producer loads.
  double local_rate() const {
    double rate = cost_.num_copies > 0 ? m_.sm_copy_rate : m_.sm_rate;
    return std::min(rate * worker_.num_sms, in_flight(m_.load_latency));
  }
  // Into shared memory, for a copy or ahead of who multiplies, or else into registers.
  const RateCurve& reads() const {
    return cost_.num_copies > 0 || kind_ == WorkKind::kPut ? m_.pull : m_.load;
  }
  double link_rate(const RateCurve& curve, double latency) const {
    double rate = curve.per_sm() * worker_.num_sms;
    return kind_ == WorkKind::kPut ? std::min(rate, in_flight(latency)) : rate;
  }
  double in_flight(double latency) const {
    if (kind_ != WorkKind::kPut || worker_.pipe_bytes == 0 || latency == 0) return 1e30;
    return worker_.pipe_bytes / latency;
  }

  void add(int rank, Unit unit, double amount, bool is_comm) {
    if (amount <= 0) return;
    int resource = rank * kNumUnits + unit;
    for (Demand& d : work_.demands) {
      if (d.resource == resource && d.is_comm == is_comm) {
        d.amount += amount;
        return;
      }
    }
    work_.demands.push_back({resource, amount, is_comm, worker_.by_copy_engine});
  }
  void demand(Unit unit, double amount) { add(worker_.rank, unit, amount, false); }
  void comm(int rank, Unit unit, double amount) { add(rank, unit, amount, true); }

  // How much more of a link's time a byte takes than at its best.
  double share_of_link(double rate) const { return std::max(m_.link_rate / rate, 1.0); }
  double write_share() const {
    if (remote_written_ == 0) return 1;
    double plain = remote_written_ - cost_.packets;
    return (plain * share_of_link(m_.push.best()) + cost_.packets * share_of_link(m_.packet_rate)) /
           remote_written_;
  }

  void remote_demands(const RemoteBytes& r) {
    // What SMs read and write does not fill a link as well as what its best users do.
    bool engine = worker_.by_copy_engine;
    double read = r.read * (engine ? 1 : share_of_link(reads().best()));
    double written = r.written * (engine ? 1 : write_share());
    comm(r.rank, kLinkOut, read);
    comm(worker_.rank, kLinkIn, read);
    comm(worker_.rank, kLinkOut, written);
    comm(r.rank, kLinkIn, written);
    comm(r.rank, kHbm, r.read + r.written);
  }

  const Cost& cost_;
  WorkKind kind_;
  const WorkerRate& worker_;
  const Machine& m_;
  bool overlaps_ = false;
  double remote_read_ = 0, remote_written_ = 0;
  Work work_;
};

}  // namespace

Work make_work(const Frame& frame, WorkKind kind, const WorkerRate& worker) {
  return WorkMaker(frame, kind, worker).run();
}

}  // namespace stretto::predict
