#include "stretto/proof/mutation/mutate.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "stretto/base/at.h"
#include "stretto/proof/mutation/site.h"

namespace stretto {
namespace {

using Edit = std::function<void(Op&)>;

class Mutator {
 public:
  explicit Mutator(const Program& program) : original_(program), sites_(all_sites(program)) {
    for (const Site& site : sites_) find_guarded(site);
  }

  std::vector<Mutant> run() {
    for (const Site& site : sites_) {
      site_ = site;
      op_ = &op_at(original_, site);
      if (synchronises_inside(*op_) || op_->region || op_->code == OpCode::kAwait) {
        std::string base = name(original_, site);
        int nth = ++seen_[base];
        site_name_ = nth == 1 ? base : fmt::format("{} #{}", base, nth);
        mutate();
      }
    }
    whole_program();
    return std::move(out_);
  }

 private:
  void mutate() {
    switch (op_->code) {
      case OpCode::kWait:
        return wait();
      case OpCode::kNotify:
        return notify();
      case OpCode::kLoop:
        return loop();
      case OpCode::kWhen:
        return when();
      case OpCode::kStorePacket:
        return packet();
      case OpCode::kFence:
        return drop("drop fence");
      case OpCode::kPipePut:
      case OpCode::kPipeFill:
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
      case OpCode::kArrive:
      case OpCode::kBarrierSync:
      case OpCode::kAwait:
        return worker_sync();
      default:
        return access();
    }
  }

  // --- waits ---
  void wait() {
    drop("drop wait");
    const Expr& at_least = op_->exprs[1];
    if (!at_least.is_const(1)) {  // else the same as dropping it
      edit("lower threshold", [](Op& o) { o.exprs[1] = o.exprs[1] - 1; });
    }
    edit("raise threshold", [](Op& o) { o.exprs[1] = o.exprs[1] + 1; });
    wrong_channel("wait for wrong channel");
    if (world() > 1 && uses_var(op_->exprs[0], 0)) {
      edit("wait in wrong rotation", [this](Op& o) { o.exprs[0] = as_next_rank(o.exprs[0]); });
    }
    wrong_signal("wait for wrong signal");
    late_wait();
  }

  // --- notifies ---
  void notify() {
    drop("drop notify");
    insert_twin("duplicate notify");
    wrong_channel("notify wrong channel");
    if (world() > 1) {
      edit("notify wrong rank", [this](Op& o) { o.exprs[1] = next(o.exprs[1], world()); });
      if (!op_->exprs[1].same(Expr::var(0))) {
        edit("notify only itself", [](Op& o) { o.exprs[1] = Expr::var(0); });
      }
    }
    edit("notify too much", [](Op& o) { o.exprs[2] = o.exprs[2] + 1; });
    wrong_signal("notify wrong signal");
    swap_with_next_notify();
    early_notify();
  }

  void wrong_channel(const char* kind) {
    std::int64_t channels = signal(*op_).num_channels;
    if (channels == 1) return;
    edit(kind, [channels](Op& o) { o.exprs[0] = next(o.exprs[0], channels); });
  }

  void wrong_signal(const char* kind) {
    int count = static_cast<int>(original_.signals.size());
    if (count == 1) return;
    int other = (op_->symbol + 1) % count;
    Expr channel = op_->exprs[0] % original_.signals[at(other)].num_channels;
    std::vector<std::string> clues = clues_of_signal(other);
    edit(
        kind,
        [&](Op& o) {
          o.symbol = other;
          o.exprs[0] = channel;
        },
        clues);
  }

  void swap_with_next_notify() {
    for (const Site& later : sites_) {
      if (later.role != site_.role || later.agent != site_.agent) continue;
      const Op& other = op_at(original_, later);
      if (other.code != OpCode::kNotify || other.symbol <= op_->symbol) continue;
      Program copy = original_;
      Op& a = op_in(copy, site_);
      Op& b = op_in(copy, later);
      std::swap(a.symbol, b.symbol);
      a.exprs[0] = op_->exprs[0] % signal(other).num_channels;
      b.exprs[0] = other.exprs[0] % signal(*op_).num_channels;
      add("swap signals of notifies", std::move(copy), clues_of_signal(other.symbol));
      return;
    }
  }

  // The outermost loop or condition around the site that does nothing but synchronise: what moves
  // when the wait or notify moves.
  std::size_t unit_depth() {
    std::size_t depth = site_.path.size() - 1;
    while (depth > 0 && !touches_shared(block(depth))) --depth;
    return depth;
  }

  void late_wait() {
    std::size_t depth = unit_depth(), from = site_.path[depth].op;
    const Block& ops = block(depth);
    for (std::size_t i = from + 1; i < ops.size(); ++i) {
      if (shared_tensors(original_, ops[i]).empty()) continue;
      Program copy = original_;
      Block& b = block_at(copy, site_, depth);
      std::rotate(b.begin() + diff(from), b.begin() + diff(from + 1), b.begin() + diff(i + 1));
      return add("wait after the access", std::move(copy), {});
    }
  }

  // The index variables that the notify needs move with it.
  void early_notify() {
    std::size_t depth = unit_depth(), from = site_.path[depth].op;
    const Block& ops = block(depth);
    for (std::size_t i = from; i-- > 0;) {
      if (shared_tensors(original_, ops[i]).empty()) continue;
      Program copy = original_;
      Block& b = block_at(copy, site_, depth);
      Block moved, rest;
      for (std::size_t j = i; j < from; ++j) {
        (b[j].code == OpCode::kLet ? moved : rest).push_back(b[j]);
      }
      moved.push_back(b[from]);
      moved.insert(moved.end(), rest.begin(), rest.end());
      std::copy(moved.begin(), moved.end(), b.begin() + diff(i));
      return add("notify before the access", std::move(copy), {});
    }
  }

  // --- control ---
  void loop() {
    if (!shared_tensors(original_, *op_).empty()) return;
    edit("skip first iteration", [](Op& o) { o.exprs[0] = o.exprs[0] + 1; });
    edit("skip last iteration", [](Op& o) { o.exprs[1] = o.exprs[1] - 1; });
  }

  void when() {
    edit("condition always holds", [](Op& o) { o.exprs[0] = 1; });
    edit("condition never holds", [](Op& o) { o.exprs[0] = 0; });
  }

  // --- memory ---
  void packet() {
    drop("drop packet store");
    if (world() == 1) return;
    edit("packet to wrong slot", [this](Op& o) { shift_origin(*o.region); });
    if (op_->region->rank.has_value()) {
      edit("packet to wrong rank", [this](Op& o) { o.region->rank = next_rank(o.region->rank); });
    }
  }

  // What another rank's signal does not cover.
  void access() {
    if (world() == 1) return;
    for (auto region : {&Op::region, &Op::region2}) {
      const auto& r = op_->*region;
      if (!r || !r->rank.has_value() || r->rank.same(Expr::var(0))) continue;
      edit("access on wrong rank",
           [this, region](Op& o) { (o.*region)->rank = next_rank((o.*region)->rank); });
    }
  }

  void shift_origin(Region& region) const {
    std::int64_t size = bound_shape(original_, region.tensor)[0];
    region.origin[0] = next(region.origin[0], size);
  }

  // --- within a worker ---
  void worker_sync() {
    switch (op_->code) {
      case OpCode::kPipePut:
        drop("drop pipe put");
        insert_twin("duplicate pipe put");
        return wrong_pipe("put into wrong pipe");
      case OpCode::kPipeFill:
        drop("drop pipe fill");
        insert_twin("duplicate pipe fill");
        return wrong_pipe("fill of wrong pipe");
      case OpCode::kPipeGet:
        drop("drop pipe get");
        insert_twin("duplicate pipe get");
        return wrong_pipe("get from wrong pipe");
      case OpCode::kPipeRelease:
        drop("drop pipe release");
        insert_twin("duplicate pipe release");
        wrong_pipe("release of wrong pipe");
        release_unread();
        return early_release();
      case OpCode::kAwait:
        drop("drop await");
        return edit("await too few", [](Op& o) { o.exprs[0] = o.exprs[0] + 1; });
      default:
        drop("drop barrier");
        return insert_twin("duplicate barrier");
    }
  }

  void wrong_pipe(const char* kind) {
    std::vector<std::string> clues;
    for (const Pipe& p : original_.roles[at(site_.role)].pipes) clues.push_back(quoted(p.name));
    int count = static_cast<int>(clues.size());
    if (count == 1) return;
    edit(
        kind, [count](Op& o) { o.symbol = (o.symbol + 1) % count; }, clues);
  }

  // Right after the slot was got.
  void release_unread() {
    std::size_t depth = site_.path.size() - 1, from = site_.path[depth].op;
    const Block& ops = block(depth);
    for (std::size_t i = 0; i < from; ++i) {
      if (ops[i].code != OpCode::kPipeGet || ops[i].symbol != op_->symbol) continue;
      Program copy = original_;
      Block& b = block_at(copy, site_, depth);
      std::rotate(b.begin() + diff(i + 1), b.begin() + diff(from), b.begin() + diff(from + 1));
      return add("release before use", std::move(copy), {});
    }
  }

  // Before the operation that waits until the slot's readers are done.
  void early_release() {
    std::size_t depth = site_.path.size() - 1, from = site_.path[depth].op;
    const Block& ops = block(depth);
    for (std::size_t i = from; i-- > 0;) {
      if (ops[i].code != OpCode::kAwait) continue;
      Program copy = original_;
      Block& b = block_at(copy, site_, depth);
      std::rotate(b.begin() + diff(i), b.begin() + diff(from), b.begin() + diff(from + 1));
      return add("release before await", std::move(copy), {});
    }
  }

  // --- the program as a whole ---
  void whole_program() {
    for (std::size_t t = 0; t < original_.tensors.size(); ++t) {
      const Tensor& tensor = original_.tensors[t];
      if (tensor.kind != TensorKind::kBuffer || tensor.num_slots < 2) continue;
      Program copy = original_;
      --copy.tensors[t].num_slots;
      out_.push_back({"fewer slots",
                      fmt::format("buffer '{}'", tensor.name),
                      std::move(copy),
                      {quoted(tensor.name)}});
    }
    for (std::size_t r = 0; r < original_.roles.size(); ++r) {
      for (std::size_t p = 0; p < original_.roles[r].pipes.size(); ++p) one_slot(r, p);
    }
    clear_agent("drop on_start", &Program::on_start);
    clear_agent("drop on_end", &Program::on_end);
  }

  void one_slot(std::size_t role, std::size_t pipe) {
    Program copy = original_;
    Pipe& p = copy.roles[role].pipes[pipe];
    if (p.num_slots == 1) return;
    p.num_slots = 1;
    std::string site = fmt::format("{}: pipe '{}'", copy.roles[role].name, p.name);
    out_.push_back({"pipe of one slot", site, std::move(copy), {quoted(p.name), "pipe"}});
  }

  void clear_agent(const char* kind, Agent Program::*agent) {
    const Block& body = (original_.*agent).body;
    if (std::none_of(body.begin(), body.end(), synchronises_inside)) return;
    Program copy = original_;
    (copy.*agent).body.clear();
    std::vector<std::string> clues;
    for (const Signal& s : original_.signals) {
      for (const std::string& c : clues_of_signal(original_.find_signal(s.name))) {
        clues.push_back(c);
      }
    }
    out_.push_back({kind, std::string(kind).substr(5), std::move(copy), std::move(clues)});
  }

  // --- making mutants ---
  void edit(const char* kind, const Edit& change, const std::vector<std::string>& clues = {}) {
    Program copy = original_;
    change(op_in(copy, site_));
    add(kind, std::move(copy), clues);
  }
  void drop(const char* kind) {
    Program copy = original_;
    Block& b = block_at(copy, site_, site_.path.size() - 1);
    b.erase(b.begin() + diff(site_.path.back().op));
    add(kind, std::move(copy), {});
  }
  void insert_twin(const char* kind) {
    Program copy = original_;
    Block& b = block_at(copy, site_, site_.path.size() - 1);
    Op twin = b[site_.path.back().op];
    b.insert(b.begin() + diff(site_.path.back().op), std::move(twin));
    add(kind, std::move(copy), {});
  }

  void add(const char* kind, Program program, std::vector<std::string> clues) {
    clues.push_back(fmt::format("{}:{}", op_->loc.file, op_->loc.line));
    add_symbols(*op_, clues);
    out_.push_back({kind, site_name_, std::move(program), std::move(clues)});
  }

  // What the operation, or those inside it, touch and synchronise with.
  void add_symbols(const Op& op, std::vector<std::string>& clues) const {
    for (const auto* region : {&op.region, &op.region2}) {
      if (*region) clues.push_back(quoted(original_.tensors[at((*region)->tensor)].name));
    }
    const Role* role = site_.role >= 0 ? &original_.roles[at(site_.role)] : nullptr;
    switch (op.code) {
      case OpCode::kNotify:
      case OpCode::kWait:
        for (const std::string& c : clues_of_signal(op.symbol)) clues.push_back(c);
        break;
      case OpCode::kPipePut:
      case OpCode::kPipeFill:
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
        clues.push_back(quoted(role->pipes[at(op.symbol)].name));
        break;
      case OpCode::kArrive:
      case OpCode::kBarrierSync:
        clues.push_back(quoted(role->barriers[at(op.symbol)].name));
        break;
      case OpCode::kAwait:
        for (const Pipe& pipe : role->pipes) clues.push_back(quoted(pipe.name));
        break;
      case OpCode::kFence:
        for (int t : touched_by_agent()) clues.push_back(quoted(original_.tensors[at(t)].name));
        break;
      case OpCode::kStorePacket:
        for (const Site& site : sites_) {
          const Op& load = op_at(original_, site);
          bool reader =
              load.code == OpCode::kLoadPacket && load.region->tensor == op.region->tensor;
          if (reader) clues.push_back(fmt::format("{}:{}", load.loc.file, load.loc.line));
        }
        break;
      default:
        break;
    }
    for (const Block& body : op.bodies) {
      for (const Op& inner : body) {
        clues.push_back(fmt::format("{}:{}", inner.loc.file, inner.loc.line));
        add_symbols(inner, clues);
      }
    }
  }

  std::set<int> touched_by_agent() const {
    std::set<int> out;
    for (const Op& o : body_at(const_cast<Program&>(original_), site_)) {
      for (int t : shared_tensors(original_, o)) out.insert(t);
    }
    return out;
  }

  // --- what a signal guards ---
  // The shared tensors of every agent that notifies it or waits for it.
  void find_guarded(const Site& site) {
    const Op& op = op_at(original_, site);
    if (op.code != OpCode::kNotify && op.code != OpCode::kWait) return;
    lines_[op.symbol].insert(fmt::format("{}:{}", op.loc.file, op.loc.line));
    for (const Op& o : body_at(const_cast<Program&>(original_), site)) {
      for (int t : shared_tensors(original_, o)) guarded_[op.symbol].insert(t);
    }
  }

  std::vector<std::string> clues_of_signal(int symbol) const {
    std::vector<std::string> out = {quoted(original_.signals[at(symbol)].name)};
    auto ends = lines_.find(symbol);
    if (ends != lines_.end()) out.insert(out.end(), ends->second.begin(), ends->second.end());
    auto it = guarded_.find(symbol);
    if (it == guarded_.end()) return out;
    for (int t : it->second) out.push_back(quoted(original_.tensors[at(t)].name));
    return out;
  }

  static std::string quoted(const std::string& text) { return "'" + text + "'"; }

  // --- small things ---
  int world() const { return original_.world_size; }
  const Signal& signal(const Op& op) const { return original_.signals[at(op.symbol)]; }
  const Block& block(std::size_t depth) const {
    return block_at(const_cast<Program&>(original_), site_, depth);
  }
  static Op& op_in(Program& program, const Site& site) {
    return block_at(program, site, site.path.size() - 1)[site.path.back().op];
  }
  bool touches_shared(const Block& ops) const {
    return std::any_of(ops.begin(), ops.end(),
                       [&](const Op& o) { return !shared_tensors(original_, o).empty(); });
  }
  static std::ptrdiff_t diff(std::size_t i) { return static_cast<std::ptrdiff_t>(i); }
  static Expr next(const Expr& e, std::int64_t modulo) { return (e + 1) % modulo; }
  Expr next_rank(const Expr& e) const { return next(e, world()); }
  Expr as_next_rank(const Expr& e) const {
    return substitute(e, std::vector<Expr>{next_rank(Expr::var(0))});
  }

  const Program& original_;
  std::vector<Site> sites_;
  std::map<int, std::set<std::string>> lines_;  // per signal: where it is notified or waited for
  std::map<int, std::set<int>> guarded_;        // per signal: tensors
  std::map<std::string, int> seen_;
  Site site_;
  std::string site_name_;
  const Op* op_ = nullptr;
  std::vector<Mutant> out_;
};

}  // namespace

std::vector<Mutant> mutants_of(const Program& program) { return Mutator(program).run(); }

}  // namespace stretto
