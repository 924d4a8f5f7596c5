#include "stretto/ops/collectives/uneven.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/operator/field_check.h"

namespace stretto {
namespace {

constexpr std::int64_t kMostRows = std::int64_t{1} << 31;

void check(const char* op, const UnevenDesc& d, const UnevenConfig& c) {
  check_sizes(op, {{"m", d.m},
                   {"room", d.room},
                   {"n", d.n},
                   {"world_size", d.world_size},
                   {"tile_rows", c.tile_rows},
                   {"piece_rows", c.piece_rows},
                   {"piece_cols", c.piece_cols},
                   {"num_workers", c.num_workers}});
  if (c.threads < 0 || c.threads > 1024 || c.threads % 128 != 0) {
    throw UserError(
        fmt::format("{}: threads is {}, need 0 to 1024 in steps of 128", op, c.threads));
  }
  // Sizes of all ranks are added in 32 bits.
  if (d.m >= kMostRows / (d.world_size + 1) || d.room >= kMostRows / 2) {
    throw UserError(fmt::format("{}: m is {} and room {} on {} ranks: too many rows to number", op,
                                d.m, d.room, d.world_size));
  }
}

class Uneven {
 public:
  static constexpr std::int64_t kRanksAtOnce = 4;
  enum class Kind : std::uint8_t { kAllToAll, kAllGather };

  Uneven(ProgramBuilder& p, const UnevenDesc& d, const UnevenConfig& cfg, Kind kind)
      : p_(p),
        d_(d),
        cfg_(cfg),
        kind_(kind),
        ranks_(d.world_size),
        m_(p.extent("m", d.m)),
        room_(p.extent("room", d.room)) {
    const bool gathers = kind == Kind::kAllGather;
    Contract rows{ContractKind::kRange, 0, m_ + 1};
    in_ = p.input("in", d.dtype, {m_, d.n}, Space::kSymmetric);
    sizes_ = gathers ? p.table("input_size", {1, 1}, rows)
                     : p.table("input_split_sizes", {ranks_, 1}, rows);
    out_ = p.state("out", d.dtype, {room_, d.n});
    received_ =
        p.output("output_split_sizes", d.wide_sizes ? DType::kI64 : DType::kI32, {ranks_, 1});
    BufferOptions symmetric{.space = Space::kSymmetric};
    counts_ = p.made_table("rows_of_rank", {ranks_, gathers ? 1 : ranks_}, rows, symmetric);
    if (!gathers) {
      firsts_ = p.made_table("first_row_of_rank", {ranks_, ranks_}, rows, symmetric);
      sent_total_ = p.made_table("rows_sent", {1, 1}, rows);
    }
    total_ = p.made_table("rows_for_max_rows", {1, 1}, {ContractKind::kRange, 0, room_ + 1});
    told_ = p.signal("told");
    done_ = p.signal("done");
  }

  void exchange(const Index& worker) {
    p_.when(worker == 0, [&] { tell(); });
    p_.wait_all(told_);
    read_runs();
    p_.when(worker == 0, [&] { report(); });
    // Of all the room: the proof has no pieces of sizes for loops that tables end.
    const std::int64_t turns = ceil_div(d_.room, cfg_.tile_rows * cfg_.num_workers);
    auto each_tile = [&](const std::function<void(const Index& row, const Index& end)>& visit) {
      p_.loop(turns, [&](const Index& i) {
        Index row = p_.let("row", (i * cfg_.num_workers + worker) * cfg_.tile_rows);
        visit(row, p_.let("end", min(row + cfg_.tile_rows, total_rows_)));
      });
    };
    // A worker that has such a tile ends its others alone, when the links are the others' no more.
    each_tile([&](const Index& row, const Index& end) {
      Index source = p_.let("source_of_row", source_of(row));
      p_.when(row < end && end_of(source) < end, [&] { gather(row, end); });
    });
    // The next rank's first, so that every rank is read by another one.
    p_.loop(ranks_, [&](const Index& i) {
      p_.worker_fence();  // as far as anybody knows, these are the same rows again
      Run run = run_of(p_.let("source", (p_.rank() + 1 + i) % ranks_));
      each_tile([&](const Index& row, const Index& end) {
        p_.when(run.begin <= row && row < end && end <= run.end, [&] { copy(run, row, end); });
      });
    });
    p_.notify_all(done_);
  }

  // Until every rank has read what it gets.
  void wait_for_readers() {
    p_.loop(ranks_,
            [&](const Index& i) { p_.wait(done_[(p_.rank() + i) % ranks_], cfg_.num_workers); });
  }

 private:
  // Of what a rank sent: its rows of `out` and the first of its `in`.
  struct Run {
    Index source, begin, end, first;
  };

  Value number(const Index& value) const { return p_.splat(DType::kI32, value); }

  // What this rank sends to each, in places numbered by `rank_of`. GPUs have no values of 64 bits,
  // but indices of any that a table's contract allows.
  Value wide_sizes(const Value& rank_of) const {
    Value sizes = rank_of * 0;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      Index size = p_.let("size", p_.read(sizes_, {rank, 0}));
      sizes = where(rank_of == number(rank), number(size), sizes);
    }
    return sizes;
  }

  // Every rank, how many rows all get and where they begin: each takes what is its own.
  void tell() {
    if (kind_ == Kind::kAllGather) {
      tell_all(counts_, d_.wide_sizes ? number(p_.let("size", p_.read(sizes_, {0, 0})))
                                      : p_.load(sizes_.tile({0, 0}, 1, 1)));
      return p_.notify_all(told_);
    }
    Value counts = d_.wide_sizes
                       ? wide_sizes(p_.iota_cols(0, ranks_))
                       : p_.load(sizes_.tile({0, 0}, 1, ranks_).rows_along(1).cols_along(0));
    Value column = d_.wide_sizes ? wide_sizes(p_.iota_rows(0, ranks_))
                                 : p_.load(sizes_.tile({0, 0}, ranks_, 1));
    Value before = p_.iota_rows(0, ranks_) < p_.iota_cols(0, ranks_);
    Value firsts = col_sum(where(before, column, number(0)));
    tell_all(counts_, counts);
    tell_all(firsts_, minimum(firsts, number(m_)));  // beyond m, rows_sent is an error
    p_.notify_all(told_);
    p_.store(sent_total_.tile({0, 0}, 1, 1), row_sum(counts));
    p_.worker_fence();
    check(sent_total_);
  }
  void tell_all(const TensorRef& table, const Value& own) {
    p_.loop(ranks_, [&](const Index& i) {
      Index to = p_.let("to", (p_.rank() + 1 + i) % ranks_);
      p_.store(table.on(to).tile({p_.rank(), 0}, 1, own.cols()), own);
    });
  }
  // What is read is held against its contract.
  void check(const TensorRef& table) { p_.let("checked", p_.read(table, {0, 0})); }

  // Of tables by source and reader.
  Index own_column() const { return kind_ == Kind::kAllGather ? Index(0) : p_.rank(); }

  // Where each rank's rows end, past the room as well, and where they begin at that rank.
  void read_runs() {
    Index end = 0;
    for (int rank = 0; rank < d_.world_size; ++rank) {
      end = p_.let("end_of_run", end + p_.read(counts_, {rank, own_column()}));
      ends_.push_back(end);
      if (kind_ == Kind::kAllGather) continue;
      first_rows_.push_back(p_.let("first_of_run", p_.read(firsts_, {rank, p_.rank()})));
    }
    total_rows_ = end;
  }
  void report() {
    p_.store(received_.tile({0, 0}, ranks_, 1),
             p_.load(counts_.tile({0, own_column()}, ranks_, 1)));
    p_.store(total_.tile({0, 0}, 1, 1), number(ends_.back()));
    p_.worker_fence();
    check(total_);
  }

  // The rank that has sent a row: as many as have all of theirs before it.
  Index source_of(const Index& row) const {
    Index source = 0;
    for (std::size_t r = 0; r + 1 < ends_.size(); ++r) source = source + (ends_[r] <= row);
    return source;
  }
  // One of these, by comparison with each rank.
  static Index of_rank(const Index& rank, const std::vector<Index>& values) {
    Index out = values.back();
    for (std::size_t r = values.size() - 1; r-- > 0;) {
      out = select(rank == static_cast<std::int64_t>(r), values[r], out);
    }
    return out;
  }
  Index end_of(const Index& rank) const { return of_rank(rank, ends_); }
  Run run_of(const Index& source) const {
    std::vector<Index> begins = {0};
    begins.insert(begins.end(), ends_.begin(), ends_.end() - 1);
    return {.source = source,
            .begin = p_.let("run_begin", of_rank(source, begins)),
            .end = p_.let("run_end", end_of(source)),
            .first =
                first_rows_.empty() ? Index(0) : p_.let("run_first", of_rank(source, first_rows_))};
  }

  // Rows that one rank has sent.
  void copy(const Run& run, const Index& row, const Index& end) {
    Index from = p_.let("from", run.first + (row - run.begin));
    p_.copy(out_.tile({row, 0}, cfg_.tile_rows, d_.n).until_row(end),
            in_.on(run.source).tile({from, 0}, cfg_.tile_rows, d_.n).until_row(from + (end - row)));
  }
  // Rows of several ranks. What a rank has not sent is not read; loads of several are under way.
  void gather(const Index& row, const Index& end) {
    const std::int64_t rows = std::min(cfg_.piece_rows, cfg_.tile_rows);
    const std::int64_t cols = std::min(cfg_.piece_cols, d_.n), across = ceil_div(d_.n, cols);
    p_.loop(ceil_div(cfg_.tile_rows, rows) * across, [&](const Index& i) {
      Index at = p_.let("piece", row + i / across * rows), col = i % across * cols;
      Value place = p_.iota_rows(at, rows), piece = p_.zeros(d_.dtype, rows, cols);
      for (std::int64_t first = 0; first < ranks_; first += kRanksAtOnce) {
        std::vector<Value> sent, parts;
        for (std::int64_t r = first; r < std::min(first + kRanksAtOnce, ranks_); ++r) {
          Run run = run_of(r);
          sent.push_back(place >= number(run.begin) && place < number(run.end));
          Value from = where(sent.back(), place + number(run.first - run.begin), number(-1));
          parts.push_back(p_.load_rows(in_.on(r).tile({0, col}, rows, cols), from));
        }
        for (std::size_t r = 0; r < parts.size(); ++r) piece = where(sent[r], parts[r], piece);
      }
      p_.store(out_.tile({at, col}, rows, cols).until_row(end), piece);
    });
  }

  ProgramBuilder& p_;
  const UnevenDesc& d_;
  const UnevenConfig& cfg_;
  Kind kind_;
  std::int64_t ranks_;
  Index m_, room_;
  TensorRef in_, sizes_, out_, received_;
  TensorRef counts_, firsts_;     // by source and reader: rows, and the first of them
  TensorRef sent_total_, total_;  // whose contracts are what there is room for
  SignalRef told_;                // by source
  SignalRef done_;                // by reader
  std::vector<Index> ends_, first_rows_;
  Index total_rows_;
};

Program program_of(const char* name, Uneven::Kind kind, const UnevenDesc& d,
                   const UnevenConfig& cfg) {
  check(name, d, cfg);
  ProgramBuilder p(name, d.world_size);
  Uneven op(p, d, cfg, kind);
  p.role("exchange", Resource::sms(cfg.num_workers), p.range(cfg.num_workers),
         [&](const Tile& t) { op.exchange(t.index); });
  p.on_end([&] { op.wait_for_readers(); });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = cfg.threads;
  if (d.wide_sizes) {
    const char* sizes = kind == Uneven::Kind::kAllGather ? "input_size" : "input_split_sizes";
    program.tensors[at(program.find_tensor(sizes))].dtype = DType::kI64;
  }
  return program;
}

}  // namespace

Program all_to_all_v(const UnevenDesc& d, const UnevenConfig& cfg) {
  return program_of("all_to_all_v", Uneven::Kind::kAllToAll, d, cfg);
}

Program all_gather_v(const UnevenDesc& d, const UnevenConfig& cfg) {
  return program_of("all_gather_v", Uneven::Kind::kAllGather, d, cfg);
}

NamedFields fields_of(UnevenDesc& d) {
  return {NamedField("m", d.m).as("[{},"),
          NamedField("n", d.n).as("{}]"),
          NamedField("room", d.room).as("to {}"),
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.world_size).as("P={}"),
          {"wide_sizes", d.wide_sizes}};
}

NamedFields fields_of(UnevenConfig& c) {
  return {{"tile_rows", c.tile_rows},
          {"piece", {&c.piece_rows, &c.piece_cols}},
          {"workers", c.num_workers},
          {"threads", c.threads, 0}};
}

}  // namespace stretto
