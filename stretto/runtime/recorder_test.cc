#include "stretto/runtime/recorder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "stretto/base/json.h"
#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/runtime/world.h"

namespace stretto::recorder_test {
namespace {

namespace fs = std::filesystem;

class RecorderTest : public testing::Test {
 protected:
  RecorderTest() {
    std::string pattern = (fs::temp_directory_path() / "stretto-recorder-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~RecorderTest() override { fs::remove_all(dir_); }

  Json written(const Recorder& recorder) const {
    recorder.write_trace(dir_ / "trace.json");
    return read_json_file(dir_ / "trace.json");
  }
  std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }

  fs::path dir_;
};

std::int64_t nanoseconds(const Json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

std::vector<Json> events_with(const Json& trace, const std::string& phase,
                              const std::string& category = "") {
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"]) {
    bool matches = category.empty() || event.value("cat", "") == category;
    if (event["ph"] == phase && matches) found.push_back(event);
  }
  return found;
}

// Lane name by (pid, tid).
std::map<std::pair<int, int>, std::string> lane_names(const Json& trace) {
  std::map<std::pair<int, int>, std::string> names;
  for (const Json& event : events_with(trace, "M")) {
    if (event["name"] != "thread_name") continue;
    names[{event["pid"], event["tid"]}] = event["args"]["name"];
  }
  return names;
}

void add_random_events(Recorder& recorder, std::mt19937_64& random, std::vector<NotifyMark>& marks,
                       std::vector<Span>& waits) {
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const char* roles[] = {recorder.intern("gather"), recorder.intern("gemm")};
  const char* signals[] = {recorder.intern("ready"), recorder.intern("done")};
  const char* program = recorder.intern("ag_gemm");
  for (int i = 0; i < 1500; ++i) {
    std::int64_t time = 5'000'000 + below(200'000);
    if (below(2) == 0) {
      NotifyMark mark{.from_rank = below(3), .to_rank = below(3), .worker = below(2)};
      mark.program = program;
      mark.role = roles[below(2)];
      mark.signal = signals[below(2)];
      mark.channel = below(3);
      mark.epoch = below(2);
      mark.time_ns = time;
      marks.push_back(mark);
      recorder.add(mark);
      continue;
    }
    Span span{.kind = below(2) == 0 ? SpanKind::kWait : SpanKind::kTile, .rank = below(3)};
    span.worker = below(2);
    span.program = program;
    span.role = roles[below(2)];
    span.tile = below(50);
    span.epoch = below(2);
    span.begin_ns = time;
    span.end_ns = time + below(3000);
    if (span.kind == SpanKind::kWait) {
      span.detail = signals[below(2)];
      span.channel = below(3);
      waits.push_back(span);
    }
    recorder.add(span);
  }
}

// (from rank, time of the notify, to rank, end of the arrow), in the simplest way.
using Arrow = std::tuple<int, std::int64_t, int, std::int64_t>;
std::multiset<Arrow> expected_arrows(const std::vector<NotifyMark>& marks,
                                     const std::vector<Span>& waits, std::int64_t origin) {
  std::multiset<Arrow> arrows;
  for (const Span& wait : waits) {
    const NotifyMark* latest = nullptr;
    for (const NotifyMark& m : marks) {
      bool same = m.to_rank == wait.rank && m.channel == wait.channel && m.epoch == wait.epoch &&
                  std::string(m.signal) == wait.detail;
      if (!same || m.time_ns > wait.end_ns) continue;
      if (latest == nullptr || m.time_ns > latest->time_ns) latest = &m;
    }
    if (latest == nullptr) continue;
    std::int64_t end = std::max({wait.end_ns - 1, wait.begin_ns, latest->time_ns});
    arrows.insert({latest->from_rank, latest->time_ns - origin, wait.rank, end - origin});
  }
  return arrows;
}

// An arrow that starts at the wrong rank sends the reader after the wrong cause.
TEST_F(RecorderTest, ArrowsGoFromTheLatestMatchingNotifyToTheWait) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  Recorder recorder(3);
  std::vector<NotifyMark> marks;
  std::vector<Span> waits;
  add_random_events(recorder, random, marks, waits);
  std::int64_t origin = recorder.spans().front().begin_ns;
  for (const NotifyMark& mark : marks) origin = std::min(origin, mark.time_ns);

  Json trace = written(recorder);
  std::map<int, Json> starts, ends;
  for (const Json& e : events_with(trace, "s")) EXPECT_TRUE(starts.emplace(e["id"], e).second);
  for (const Json& e : events_with(trace, "f")) EXPECT_TRUE(ends.emplace(e["id"], e).second);
  ASSERT_EQ(starts.size(), ends.size());
  std::multiset<Arrow> arrows;
  for (const auto& [id, start] : starts) {
    ASSERT_TRUE(ends.contains(id));
    const Json& end = ends[id];
    EXPECT_EQ(start["name"], end["name"]);
    EXPECT_LE(nanoseconds(start["ts"]), nanoseconds(end["ts"]));
    arrows.insert({start["pid"].get<int>() - 1, nanoseconds(start["ts"]), end["pid"].get<int>() - 1,
                   nanoseconds(end["ts"])});
  }
  std::multiset<Arrow> expected = expected_arrows(marks, waits, origin);
  EXPECT_GT(expected.size(), 100u);
  // Two notifies of one key at the same nanosecond may stand for each other.
  auto without_source = [](const std::multiset<Arrow>& all) {
    std::multiset<Arrow> rest;
    for (auto [from, begin, to, end] : all) rest.insert({0, begin, to, end});
    return rest;
  };
  EXPECT_EQ(without_source(arrows), without_source(expected));
}

// Viewers draw nonsense when the slices of a lane do not nest, and lose those out of order.
TEST_F(RecorderTest, SlicesOfALaneAreOrderedNestedAndNamed) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  Recorder recorder(3);
  std::vector<NotifyMark> marks;
  std::vector<Span> waits;
  add_random_events(recorder, random, marks, waits);
  Json trace = written(recorder);
  auto names = lane_names(trace);
  std::map<std::pair<int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>> open;
  std::map<std::pair<int, int>, std::int64_t> last;
  std::vector<Json> slices = events_with(trace, "X");
  EXPECT_EQ(slices.size(), 1500u);
  for (const Json& slice : slices) {
    std::pair<int, int> lane(slice["pid"], slice["tid"]);
    ASSERT_TRUE(names.contains(lane));
    EXPECT_TRUE(names[lane].starts_with("gather/") || names[lane].starts_with("gemm/"));
    std::int64_t begin = nanoseconds(slice["ts"]), end = begin + nanoseconds(slice["dur"]);
    EXPECT_GE(begin, last[lane]);
    last[lane] = begin;
    auto& stack = open[lane];
    while (!stack.empty() && stack.back().second <= begin) stack.pop_back();
    if (!stack.empty()) {
      EXPECT_LE(end, stack.back().second);
    }
    stack.emplace_back(begin, end);
  }
  std::set<std::string> processes;
  for (const Json& event : events_with(trace, "M")) {
    if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 0", "rank 1", "rank 2"}));
}

TEST_F(RecorderTest, ATraceSaysWhichTileWaitAndLaunch) {
  Recorder recorder(2);
  Span span{.kind = SpanKind::kTile, .rank = 1, .worker = 3, .program = "p", .role = "gemm"};
  span.tile = 7;
  span.epoch = 2;
  span.begin_ns = 1'000'500;
  span.end_ns = 3'000'750;
  recorder.add(span);
  span.kind = SpanKind::kWait;
  span.detail = "gathered";
  span.channel = 5;
  span.end_ns = 2'000'000;
  recorder.add(span);
  recorder.add(Span{.kind = SpanKind::kLaunch,
                    .program = "p",
                    .epoch = 4,
                    .begin_ns = 1'000'000,
                    .end_ns = 9'000'000});
  Json trace = written(recorder);
  Json tile = events_with(trace, "X", "tile").at(0), wait = events_with(trace, "X", "wait").at(0);
  EXPECT_EQ(tile["name"], "tile 7");
  EXPECT_EQ(wait["name"], "wait gathered[5]");
  EXPECT_EQ(events_with(trace, "X", "launch").at(0)["name"], "p #4");
  EXPECT_EQ(tile["ts"], 0.5);
  EXPECT_EQ(tile["dur"], 2000.25);
  EXPECT_EQ(tile["args"], (Json{{"program", "p"}, {"epoch", 2}, {"tile", 7}}));
  EXPECT_EQ(tile["tid"], wait["tid"]) << "a wait within a tile belongs on the same lane";
  EXPECT_EQ((lane_names(trace)[{2, tile["tid"].get<int>()}]), "gemm/3");
}

TEST_F(RecorderTest, NamesFromHostileFilesStayWithinTheirQuotes) {
  Recorder recorder(1);
  std::string name = "a\"b\\c\n\t{}\xff";
  Span span{.program = recorder.intern(name), .role = recorder.intern(name), .tile = 1};
  recorder.add(span);
  Json trace = written(recorder);
  std::string read = events_with(trace, "X").at(0)["args"]["program"];
  EXPECT_TRUE(read.starts_with("a\"b\\c\n\t{}")) << read;
}

TEST_F(RecorderTest, WhatDoesNotFitIsCountedAndTheFileSaysSo) {
  Recorder recorder(2, 10);
  for (int i = 0; i < 25; ++i) recorder.add(Span{.rank = 1, .role = "r", .tile = i});
  for (int i = 0; i < 3; ++i) recorder.add(NotifyMark{.from_rank = 1, .role = "r"});
  recorder.add(Span{.rank = 0, .role = "r", .tile = 0});
  EXPECT_EQ(recorder.num_dropped(), 18);
  Json trace = written(recorder);
  EXPECT_EQ(trace["otherData"]["dropped_events"], (Json{0, 18}));
  EXPECT_EQ(events_with(trace, "X").size(), 11u);
  recorder.clear();
  EXPECT_EQ(recorder.num_dropped(), 0);
  EXPECT_TRUE(recorder.spans().empty());
  EXPECT_TRUE(events_with(written(recorder), "X").empty());
}

// The demo's summary of time spent waiting comes from here.
TEST_F(RecorderTest, TimePerRoleCountsOverlapOnceAndTakesWaitsOutOfTiles) {
  Recorder recorder(2);
  auto add = [&](SpanKind kind, int rank, int worker, std::int64_t begin, std::int64_t end) {
    recorder.add(Span{.kind = kind,
                      .rank = rank,
                      .worker = worker,
                      .role = "gemm",
                      .begin_ns = begin,
                      .end_ns = end});
  };
  add(SpanKind::kTile, 0, 0, 100, 200);   // rank 0, worker 0: two agents
  add(SpanKind::kTile, 0, 0, 150, 300);   //   covered 100..300
  add(SpanKind::kWait, 0, 0, 120, 140);   //   waits 20
  add(SpanKind::kCopy, 0, 0, 160, 170);   //   within a tile
  add(SpanKind::kTile, 0, 1, 100, 150);   // another worker: 50
  add(SpanKind::kWait, 1, 0, 400, 1000);  // rank 1: a wait outside any tile
  add(SpanKind::kLaunch, 1, 0, 0, 5000);
  auto times = recorder.time_per_role();
  ASSERT_EQ(times.size(), 1u);
  EXPECT_EQ(times["gemm"].busy_ns, 180 + 50);
  EXPECT_EQ(times["gemm"].wait_ns, 20 + 600);
  EXPECT_EQ(times["gemm"].tiles, 3);
}

TEST_F(RecorderTest, RanksRecordSideBySide) {
  World world({.size = 8, .record = true});
  ASSERT_TRUE(world.recorder().enabled());
  world.run([&](Rank& rank) {
    const char* role = rank.recorder().intern(fmt::format("role {}", rank.index() % 3));
    for (int i = 0; i < 500; ++i) {
      std::int64_t now = Recorder::now_ns();
      rank.recorder().add(Span{.rank = rank.index(),
                               .role = role,
                               .tile = i,
                               .begin_ns = now,
                               .end_ns = Recorder::now_ns()});
    }
  });
  std::vector<Span> spans = world.recorder().spans();
  EXPECT_EQ(spans.size(), 4000u);
  for (std::size_t i = 1; i < spans.size(); ++i) {
    EXPECT_LE(spans[i - 1].begin_ns, spans[i].begin_ns);
  }
  EXPECT_EQ(world.recorder().time_per_role().size(), 3u);
}

TEST_F(RecorderTest, APathThatCannotBeWrittenIsNamed) {
  Recorder recorder(1);
  recorder.add(Span{.role = "r", .tile = 1});
  expect_user_error([&] { recorder.write_trace(dir_ / "absent" / "t.json"); },
                    {(dir_ / "absent" / "t.json").string(), "No such file"});
  expect_user_error([&] { recorder.write_trace(dir_); }, {dir_.string(), "directory"});
  expect_user_error([&] { recorder.write_trace("/dev/full"); }, {"/dev/full", "No space left"});
  EXPECT_TRUE(fs::is_character_file("/dev/full")) << "a device must not be replaced by a file";
  EXPECT_THROW(recorder.write_trace(""), UserError);
  EXPECT_EQ(num_files(), 0u);
}

TEST_F(RecorderTest, AFullDiskLeavesTheFormerTraceAndNothingElse) {
  Recorder recorder(1);
  for (int i = 0; i < 20'000; ++i) recorder.add(Span{.role = "r", .tile = i});
  fs::path path = dir_ / "trace.json";
  std::ofstream(path) << "former";
  rlimit former{};
  getrlimit(RLIMIT_FSIZE, &former);
  rlimit small{.rlim_cur = 300'000, .rlim_max = former.rlim_max};
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  expect_user_error([&] { recorder.write_trace(path); }, {path.string(), "too large"});
  setrlimit(RLIMIT_FSIZE, &former);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(num_files(), 1u);
  EXPECT_EQ(read_file(path, 100), "former");
}

TEST_F(RecorderTest, ASymbolicLinkStaysALink) {
  Recorder recorder(1);
  std::ofstream(dir_ / "target.json") << "former";
  fs::create_symlink("target.json", dir_ / "trace.json");
  EXPECT_TRUE(written(recorder).contains("traceEvents"));
  EXPECT_TRUE(fs::is_symlink(dir_ / "trace.json"));
  EXPECT_TRUE(read_json_file(dir_ / "target.json").contains("traceEvents"));
  EXPECT_EQ(num_files(), 2u);
}

}  // namespace
}  // namespace stretto::recorder_test
