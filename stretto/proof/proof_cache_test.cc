#include "stretto/proof/proof_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/own_files.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/content_hash.h"
#include "stretto/proof/test_programs.h"

namespace stretto::proof_cache_test {
namespace {

using std::chrono::milliseconds;
using test_programs::Edit;
using test_programs::edit;
using test_programs::exchange;
using test_programs::is_wait;

class ProofCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() /
                 ("stretto_proof_cache_test." + std::to_string(getpid()));
    std::filesystem::remove_all(directory_);
    setenv("STRETTO_CACHE_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("STRETTO_CACHE_DIR");
    std::filesystem::remove_all(directory_);
  }
  bool comes(const std::string& file) const {
    for (int i = 0; i < 5000 && !std::filesystem::exists(directory_ / file); ++i) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    return std::filesystem::exists(directory_ / file);
  }
  // What lies in the directory besides entries and the key of their seals, whoever is through.
  int num_left() const {
    int count = 0;
    for (const auto& file : std::filesystem::directory_iterator(directory_)) {
      bool is_kept = file.path().extension() == ".proof" || file.path().filename() == "seal.key";
      if (!is_kept) ++count;
    }
    return count;
  }
  std::filesystem::path directory_;
};

// As long as ranks take to meet, and a line for each proof, also of other processes.
struct SlowProof {
  std::filesystem::path log;
  ProofResult result{.verdict = Verdict::kProved};
  ProofResult operator()(const Program&, const ProofOptions&) const {
    std::ofstream(log, std::ios::app) << "proved\n" << std::flush;
    std::this_thread::sleep_for(milliseconds(200));
    return result;
  }
  int count() const {
    std::ifstream in(log);
    int lines = 0;
    for (std::string line; std::getline(in, line);) ++lines;
    return lines;
  }
};

// A process that has the turn and does not get done.
pid_t start_endless_proof(const ProofCache& cache, const Program& program,
                          const std::filesystem::path& begun) {
  pid_t child = fork();
  if (child != 0) return child;
  auto endless = [&](const Program&, const ProofOptions&) -> ProofResult {
    std::ofstream(begun) << "begun" << std::flush;
    for (;;) pause();
  };
  cache.require(program, {}, {.prove = endless});
  _exit(0);
}

// A program taken for proved that is not would run with its race.
TEST_F(ProofCacheTest, KeepsVerdictsApart) {
  ProofCache cache(directory_);
  Program good = exchange(2, {.num_slots = 2}), other = exchange(3, {.num_slots = 2});
  EXPECT_FALSE(cache.find(good, {}));
  cache.insert(good, {}, Verdict::kProved);
  EXPECT_TRUE(cache.find(good, {}));
  EXPECT_FALSE(cache.find(other, {}));
  EXPECT_FALSE(cache.find(good, {.max_samples = 7}));
  cache.insert(other, {.bounds_only = true}, Verdict::kProvedAtFixedSizes);
  EXPECT_TRUE(cache.find(other, {.bounds_only = true}));
  EXPECT_FALSE(cache.find(other, {})) << "of the largest sizes alone";
  SyncTable weaker = sync_table();
  weaker[SyncRow::kNotify].pop_back();
  EXPECT_FALSE(cache.find(good, {.table = &weaker})) << "generated code that does less";
  Program edited = good;
  ASSERT_TRUE(edit(edited, is_wait(edited, "sent"), Edit::kThresholdMinus));
  EXPECT_FALSE(cache.find(edited, {}));
}

// What was not shown of a program is told again where it was proved before.
TEST_F(ProofCacheTest, KeepsWhichVerdictItWas) {
  ProofCache cache(directory_);
  Program program = exchange(2, {.num_slots = 2});
  for (Verdict verdict : {Verdict::kProved, Verdict::kProvedAtFixedSizes}) {
    cache.insert(program, {}, verdict);
    EXPECT_EQ(cache.find(program, {}), verdict);
  }
  cache.insert(program, {}, Verdict::kNotComplete, {{"sizes", "m", "many"}});
  EXPECT_EQ(cache.find(program, {}), Verdict::kNotComplete);
  cache.insert(program, {}, Verdict::kRejected);
  EXPECT_FALSE(cache.find(program, {})) << "a rejection is not kept";
}

const std::vector<Missing> kTwoMissing = {{"sizes", "m = 1 to 9", "\"m\"\nof many"},
                                          {"tables", "a.cc:3", "who waits"}};

// What require() says with `by`: "" where it lets the program pass.
std::string refusal(const ProofCache& cache, const Program& program,
                    const ProofCache::Proving& by) {
  try {
    cache.require(program, {}, by);
    return "";
  } catch (const NotComplete& e) {
    EXPECT_EQ(e.missing().size(), kTwoMissing.size());
    return e.what();
  }
}

// A launch of what was not shown whole would run with whatever was not looked at.
TEST_F(ProofCacheTest, WhatIsNotCompleteIsRefusedWithWhatIsMissing) {
  std::filesystem::create_directories(directory_);
  const ProofCache cache(directory_);
  const Program program = exchange(2, {.num_slots = 2});
  const SlowProof slow{.log = directory_ / "log.proof",
                       .result = {.verdict = Verdict::kNotComplete, .missing = kTwoMissing}};
  const std::string said = refusal(cache, program, {.prove = slow});
  EXPECT_TRUE(said.starts_with("exchange on 2 ranks is not launched")) << said;
  for (const Missing& m : kTwoMissing) {
    EXPECT_NE(said.find("not shown: " + describe(m)), std::string::npos) << said;
  }
  EXPECT_NE(said.find("ProveOptions::waiver"), std::string::npos) << said;
  EXPECT_EQ(refusal(cache, program, {.prove = slow}), said) << "of the kept verdict";
  EXPECT_EQ(slow.count(), 1) << "it is kept";
  EXPECT_EQ(refusal(cache, program, {.prove = slow, .waiver = "it was looked at"}), "");
  EXPECT_EQ(refusal(cache, program, {.prove = slow}), said) << "a waiver is one caller's";
}

// A reason lets nothing pass in which something was found.
TEST_F(ProofCacheTest, AWaiverLetsNothingWrongPass) {
  const ProofCache cache(directory_);
  const Program bad = exchange(2, {.num_slots = 1});
  EXPECT_THROW(cache.require(bad, {}, {.waiver = "it looks right"}), Rejected);
}

// Nothing is known of it, so it may not run; but with more time it may be proved.
TEST_F(ProofCacheTest, WhatIsBeyondTheLimitsIsRefusedAndNotKept) {
  std::filesystem::create_directories(directory_);
  const ProofCache cache(directory_);
  const Program program = exchange(2, {.num_slots = 2});
  const SlowProof slow{.log = directory_ / "log.proof",
                       .result = {.verdict = Verdict::kNotComplete,
                                  .missing = kTwoMissing,
                                  .within_limits = false}};
  std::atomic<int> asking{0}, heard{0};
  auto when_all_ask = [&](const Program& p, const ProofOptions& options) {
    while (asking < 4) std::this_thread::sleep_for(milliseconds(1));
    return slow(p, options);
  };
  auto ask = [&] {
    ++asking;
    if (!refusal(cache, program, {.prove = when_all_ask}).empty()) ++heard;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(ask);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(heard, 4);
  EXPECT_EQ(slow.count(), 1) << "those that waited were told";
  EXPECT_FALSE(cache.find(program, {}));
  ask();
  EXPECT_EQ(slow.count(), 2) << "whoever comes later may have more time";
}

// A program of whose sizes many are looked at one by one, for longer than a millisecond.
Program of_many_sizes() {
  ProgramBuilder p("many_sizes", 2);
  Index m = p.extent("m", 90);
  auto in = p.input("in", DType::kF32, {m, 8});
  auto inbox = p.buffer("inbox", DType::kF32, {m, 8}, {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {m, 8});
  auto ready = p.signal("ready"), sent = p.signal("sent");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("send", Resource::copy_engine(), p.range(90), [&](const Tile& t) {
    p.when(t.index == 0, [&] { p.wait(ready, peer); });
    p.put(inbox.on(peer).tile({t.index, 0}, 1, 8), in.tile({t.index, 0}, 1, 8));
    p.notify(sent[p.rank()], peer);
  });
  p.role("recv", Resource::sms(1), p.range(m), [&](const Tile& t) {
    p.wait(sent[peer], t.index + 1);
    p.store(out.tile({t.index, 0}, 1, 8), p.load(inbox.tile({t.index, 0}, 1, 8)));
  });
  p.on_end([&] { p.wait(sent[peer], 90); });
  return run_pipeline(p.finish());
}

// Nobody is refused for good because one launch had little time, and nothing that ran out of time
// counts as proved.
TEST_F(ProofCacheTest, TheLimitOfTimeIsOneCallers) {
  const ProofCache cache(directory_);
  const Program program = of_many_sizes();
  const auto within = [](milliseconds limit) {
    return ProofOptions{.max_enumerated = 1U << 30, .partition = false, .time_limit = limit};
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(cache.require(program, within(milliseconds(1)), {}), NotComplete);
    EXPECT_FALSE(cache.find(program, within(milliseconds(1)))) << "it ran out of time";
    EXPECT_FALSE(cache.find(program, within(milliseconds(0))));
  }
  EXPECT_EQ(cache.require(program, within(std::chrono::hours(1)), {}), Verdict::kProved);
  EXPECT_EQ(cache.find(program, within(std::chrono::hours(2))), Verdict::kProved);
  EXPECT_EQ(cache.require(program, within(milliseconds(1)), {}), Verdict::kProved)
      << "it is known, and takes no time";
}

// What an older proof accepted may be what this one has learnt to reject.
TEST_F(ProofCacheTest, EntriesOfOtherVersionsDoNotCount) {
  const ProofCache cache(directory_);
  const Program program = exchange(2, {.num_slots = 2});
  for (int version : {ProofCache::kProofVersion - 1, ProofCache::kProofVersion + 1}) {
    const ProofCache other(directory_, version);
    other.insert(program, {}, Verdict::kProved);
    EXPECT_TRUE(other.find(program, {}));
    EXPECT_FALSE(cache.find(program, {})) << "version " << version;
    std::filesystem::copy_file(other.entry(program, {}), cache.entry(program, {}),
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_FALSE(cache.find(program, {})) << "version " << version << " under this one's name";
    std::filesystem::remove(cache.entry(program, {}));
  }
  const SlowProof slow{.log = directory_ / "log.proof"};
  cache.require(program, {}, {.prove = slow});
  EXPECT_EQ(slow.count(), 1) << "it is proved anew";
}

TEST_F(ProofCacheTest, IgnoresDamagedEntries) {
  ProofCache cache(directory_);
  Program good = exchange(2, {.num_slots = 2}), other = exchange(3, {.num_slots = 2});
  cache.insert(good, {}, Verdict::kProved);
  std::filesystem::path entry = cache.entry(good, {});
  std::filesystem::copy_file(entry, cache.entry(other, {}));
  EXPECT_FALSE(cache.find(other, {})) << "an entry of another program";
  std::filesystem::resize_file(entry, 3);
  EXPECT_FALSE(cache.find(good, {})) << "a truncated entry";
  std::ofstream(entry, std::ios::binary) << std::string(1 << 16, 'x');
  EXPECT_FALSE(cache.find(good, {})) << "an entry of something else";
  cache.insert(good, {}, Verdict::kNotComplete);
  EXPECT_FALSE(cache.find(good, {})) << "an entry that does not say what is missing";
  std::string key = entry.stem().string();
  for (const std::string& text :
       {"proved: " + key + "\n", "not complete: " + key + "\n[[1, 2, 3]]\n"}) {
    ASSERT_FALSE(SealedFolder(directory_).write(entry.filename(), text));
    EXPECT_FALSE(cache.find(good, {})) << "an entry of an older version: " << text;
  }
}

TEST_F(ProofCacheTest, RequireProvedThrowsTheReportAndCachesOnlySuccess) {
  Program bad = exchange(2, {.num_slots = 1});
  for (int i = 0; i < 2; ++i) {
    try {
      require_proved(bad);
      FAIL() << "accepted";
    } catch (const Rejected& e) {
      EXPECT_EQ(std::string(e.what()).find("rejected: exchange on 2 ranks"), 0u) << e.what();
    }
  }
  Program good = exchange(2, {.num_slots = 2});
  require_proved(good);
  EXPECT_TRUE(ProofCache(directory_ / "proofs").find(good, {}));
  require_proved(good);
}

TEST_F(ProofCacheTest, AReadOnlyCacheCostsTimeOnly) {
  std::ofstream(directory_.string()) << "a file where the directory should be";
  EXPECT_NO_THROW(require_proved(exchange(2, {.num_slots = 2})));
}

// 64 ranks on two cores would prove one by one, and run into each other's deadlines.
TEST_F(ProofCacheTest, OfThreadsThatAskTogetherOneProves) {
  std::filesystem::create_directories(directory_);
  const Program program = exchange(2, {.num_slots = 2}), other = exchange(3, {.num_slots = 2});
  const SlowProof slow{.log = directory_ / "log.proof"};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      const ProofCache cache(directory_);
      cache.require(program, {}, {.prove = slow});
      EXPECT_TRUE(cache.find(program, {}));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(slow.count(), 1);
  ProofCache(directory_).require(other, {}, {.prove = slow});
  EXPECT_EQ(slow.count(), 2) << "another program's verdict";
  EXPECT_EQ(num_left(), 0);
}

TEST_F(ProofCacheTest, OfProcessesThatAskTogetherOneProves) {
  std::filesystem::create_directories(directory_);
  const Program program = exchange(2, {.num_slots = 2});
  const SlowProof slow{.log = directory_ / "log.proof"};
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    ProofCache(directory_).require(program, {}, {.prove = slow});
    _exit(ProofCache(directory_).find(program, {}) ? 0 : 1);
  }
  for (pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(slow.count(), 1);
  EXPECT_EQ(num_left(), 0);
}

// A user who hears nothing takes a long proof for a program that hangs.
TEST_F(ProofCacheTest, SaysThatALongProofGoesOn) {
  std::filesystem::create_directories(directory_);
  const Program program = exchange(2, {.num_slots = 2});
  auto slow = [](const Program&, const ProofOptions&) {
    std::this_thread::sleep_for(milliseconds(2500));
    return ProofResult{.verdict = Verdict::kProved};
  };
  for (const char* said : {"stretto: proving 'exchange', kept for later runs, 2 s so far\n", ""}) {
    testing::internal::CaptureStderr();
    ProofCache(directory_).require(program, {}, {.prove = slow});
    EXPECT_EQ(testing::internal::GetCapturedStderr(), said);
  }
}

// Otherwise each in turn would find the same race, and the last rank hear of it last.
TEST_F(ProofCacheTest, ARejectionIsForAllThatWaitAndForNobodyLater) {
  std::filesystem::create_directories(directory_);
  const Program program = exchange(2, {.num_slots = 1});
  const std::string report = "rejected: a race\n" + std::string(10'000, '.');
  const SlowProof slow{.log = directory_ / "log.proof",
                       .result = {.verdict = Verdict::kRejected, .report = report}};
  std::atomic<int> asking{0}, heard{0};
  auto when_all_ask = [&](const Program& p, const ProofOptions& options) {
    while (asking < 8) std::this_thread::sleep_for(milliseconds(1));
    return slow(p, options);
  };
  auto ask = [&] {
    ++asking;
    try {
      ProofCache(directory_).require(program, {}, {.prove = when_all_ask});
    } catch (const Rejected& e) {
      if (e.what() == report) ++heard;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(ask);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(heard, 8);
  EXPECT_EQ(slow.count(), 1);
  ask();
  EXPECT_EQ(heard, 9);
  EXPECT_EQ(slow.count(), 2);
  EXPECT_EQ(num_left(), 0);
}

TEST_F(ProofCacheTest, AKilledProverLeavesItsTurnToTheNext) {
  std::filesystem::create_directories(directory_);
  const ProofCache cache(directory_);
  const Program program = exchange(2, {.num_slots = 2});
  pid_t child = start_endless_proof(cache, program, directory_ / "begun.proof");
  ASSERT_TRUE(comes("begun.proof"));
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(100));
    kill(child, SIGKILL);
  });
  testing::internal::CaptureStderr();
  cache.require(program, {}, {});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "waited as long as for one that hangs";
  EXPECT_TRUE(cache.find(program, {}));
  EXPECT_EQ(num_left(), 0);
  killer.join();
  waitpid(child, nullptr, 0);
}

TEST_F(ProofCacheTest, AProverThatHangsIsWaitedForSoLong) {
  std::filesystem::create_directories(directory_);
  const ProofCache cache(directory_);
  const Program program = exchange(2, {.num_slots = 2});
  pid_t child = start_endless_proof(cache, program, directory_ / "begun.proof");
  ASSERT_TRUE(comes("begun.proof"));
  const SlowProof slow{.log = directory_ / "log.proof"};
  testing::internal::CaptureStderr();
  cache.require(program, {}, {.prove = slow, .longest_wait = milliseconds(50)});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("process " + std::to_string(child)),
            std::string::npos);
  EXPECT_EQ(slow.count(), 1);
  EXPECT_TRUE(cache.find(program, {}));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// As on file systems without locks: what cannot be opened cannot be locked.
TEST_F(ProofCacheTest, WithoutLocksEachProves) {
  const ProofCache cache(directory_);
  const Program program = exchange(2, {.num_slots = 2});
  std::filesystem::path lock = cache.entry(program, {}).replace_extension(".lock");
  std::filesystem::create_directories(lock);
  const SlowProof slow{.log = directory_ / "log.proof"};
  cache.require(program, {}, {.prove = slow});
  EXPECT_EQ(slow.count(), 1);
  EXPECT_TRUE(cache.find(program, {}));
}

TEST(ContentHash, IsFnv1a) {
  EXPECT_EQ(content_hash(""), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(content_hash("a"), "d228cb696f1a8caf78912b704e4a8964");
}

}  // namespace
}  // namespace stretto::proof_cache_test
