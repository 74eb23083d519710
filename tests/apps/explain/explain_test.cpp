// What ranks leave behind when something fails, and what aliquot doctor --explain makes of it: three desyncs, staged.
#include "apps/explain/explain.h"

#include <array>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sys/stat.h>
#include <thread>

#include "sharding/comm/operation_description.h"
#include "sharding/flight/flight_recorder.h"
#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"
#include "tests/support/failing_world.h"
#include "tests/support/mpirun.h"

namespace aliquot {
namespace {

/// A world of threads that fails and leaves its records in a directory that goes away.
class Explain : public testing::Test {
 protected:
  void fail(int rank_count, const std::function<void(World&)>& body, double timeout_seconds = 0.3) const {
    const WorldOptions options{.device = DeviceChoice::kHost,
                               .timeout_seconds = timeout_seconds,
                               .flight_directory = directory_.path().string()};
    EXPECT_THROW(World::threads(rank_count, body, options), FaultError);
  }
  std::string explained() const {
    const test::CommandResult result = test::run_aliquot({"doctor", "--explain", directory_.path().string()});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  test::TemporaryDirectory directory_;
};

TEST_F(Explain, SaysWhichRankCameWithAnotherCount) {
  fail(4, [](World& world) {
    auto& ranks = world.communicator();
    const auto stream = world.device().make_stream(Lane::kGather);
    const auto whole = ranks.allocate(4 * 4096, Category::kSlots, "whole");
    for (int step = 1; step <= 3; ++step) {
      const int64_t bytes = step == 3 && world.rank() == 2 ? 2048 : 4096;
      ranks.all_gather_in_place(*stream, {&whole, 0}, bytes, {"h.1", step});
    }
    stream->synchronize();
  });
  const std::string text = explained();
  EXPECT_TRUE(std::regex_search(text, std::regex("^4 of 4 ranks left a record, (at|from) [0-9]{4}-[0-9]{2}-[0-9]{2} "
                                                 "[0-9:]{8} UTC[^\n]*\\.\n")))
      << text;
  says(text, {".\n"
              "Ranks went apart at collective #3 of the gather lane: ranks 0, 1 and 3 came with all-gather of 4096 "
              "bytes in place (h.1, step 3), rank 2 with all-gather of 2048 bytes in place (h.1, step 3): another "
              "count.\n"});
}

/// A rank that was killed as it wrote leaves half a record: what that rank leaves next is all there is.
TEST_F(Explain, HalfARecordIsGoneWithTheNextOne) {
  test::write_file(directory_.path() / ".tmp-flight-0001.txt-4711", "half");
  test::write_file(directory_.path() / ".tmp-flight-0021.txt-4711", "another rank's");
  fail(2, [](World& world) {
    if (world.rank() == 1) throw FaultError("the machine is gone");
    barrier(world, Lane::kReduce, {"h.1", 7});
  });
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
    left.insert(entry.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{"flight-0000.txt", "flight-0001.txt", ".tmp-flight-0021.txt-4711"}));
}

TEST_F(Explain, SaysWhichRankNeverCame) {
  fail(3, [](World& world) {
    barrier(world, Lane::kReduce, {"h.1", 7});
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    if (world.rank() == 1) throw FaultError("too late");
    barrier(world, Lane::kReduce, {"h.2", 7});
  });
  says(explained(),
       {"Rank 1 never came to collective #2 of the reduce lane, barrier (h.2, step 7), where ranks 0 and 2 "
        "waited.\n  rank 1 had last come to #1 there, barrier (h.1, step 7), which it ended "});
}

TEST_F(Explain, SaysWhichRankCameWhenTheOthersHadGivenUp) {
  fail(3, [](World& world) {
    barrier(world, Lane::kReduce, {"h.1", 7});
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    barrier(world, Lane::kReduce, {"h.2", 7});
    barrier(world, Lane::kReduce, {"h.3", 7});
  });
  says(explained(), {"Rank 1 came to collective #2 of the reduce lane, barrier (h.2, step 7), when ranks 0 and 2 had "
                     "given up.\n"});
}

TEST_F(Explain, SaysWhichRankIsSlow) {
  fail(
      3,
      [](World& world) {
        const auto stream = world.device().make_stream(Lane::kReduce);
        for (int step = 1; step <= 40; ++step) {
          if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(step == 30 ? 700 : 10));
          world.communicator().barrier(*stream, {"h.1", step});
          stream->synchronize();
        }
        if (world.rank() == 0) throw FaultError("the disk is gone");
        barrier(world, Lane::kCompute, {"late", 41});
      },
      20);
  says(explained(),
       {"Rank 2 came last to ", "most before barrier (h.1, step 30), ", "rank 0 failed: the disk is gone"});
}

/// A save's ranks wait for one another on the host, not in a collective.
TEST_F(Explain, SaysWhichRankNeverCameToASave) {
  for (const bool under_mpi : {false, true}) {
    if (under_mpi && !test::has_mpi()) continue;
    std::vector<std::string> words{"mpirun",
                                   "-n",
                                   "2",
                                   test::aliquot_program(),
                                   "train",
                                   "--layers",
                                   "1",
                                   "--width",
                                   "32",
                                   "--sequence",
                                   "32",
                                   "--micro-batch",
                                   "1",
                                   "--threads",
                                   "1",
                                   "--quiet",
                                   "--steps",
                                   "100000",
                                   "--timeout",
                                   "1",
                                   "--checkpoint-dir",
                                   directory_.path().string(),
                                   "--checkpoint-every",
                                   "20",
                                   "--save",
                                   "snapshot"};
    if (!under_mpi) {
      words.erase(words.begin(), words.begin() + 3);
      words.insert(words.end(), {"--ranks", "2"});
    }
    const test::CommandResult result =
        test::run_program("/usr/bin/env", words,
                          test::mpirun_environment({"ALIQUOT_FAULT=rank=1,step=20,op=save,kind=slow:3s",
                                                    "OMPI_MCA_rmaps_base_oversubscribe=1"}));
    says(result.err, {"rank 0 waited 1 s for the other ranks to save together (step 20); rank 1 never arrived"});
    const std::string text = explained();
    EXPECT_TRUE(std::regex_search(text, std::regex("\nRank 1 (never )?came to meeting #[0-9]+ \\(save, step 20\\), w")))
        << text;
    says(text, {"  was in meeting #"});
  }
}

TEST_F(Explain, SaysWhoLeftNoRecordWhenARankWasKilled) {
  if (!test::has_mpi()) GTEST_SKIP() << "no mpirun here, or a build without MPI";
  const std::string records = directory_.path().string();
  test::run_program("/usr/bin/env",
                    {"mpirun", "-n", "3", test::aliquot_program(), "train", "--layers", "1", "--width", "32", "--steps",
                     "4", "--threads", "1", "--quiet"},
                    test::mpirun_environment({"ALIQUOT_FAULT=rank=1,step=3,op=backward,kind=kill",
                                              "ALIQUOT_FLIGHT_DIR=" + records, "OMPI_MCA_rmaps_base_oversubscribe=1"}));
  says(explained(), {" never came to collective #", "  rank 1 left no record: it was killed",
                     "told to end by the launcher (SIGTERM)"});
}

TEST_F(Explain, RefusesWhatIsNoRecord) {
  const auto refused = [](const std::vector<std::string>& files) {
    std::vector<std::string> words{"doctor", "--explain"};
    words.insert(words.end(), files.begin(), files.end());
    const test::CommandResult result = test::run_aliquot(words);
    EXPECT_EQ(result.code, 1);
    return result.err;
  };
  const std::string other = (directory_.path() / "flight-0000.txt").string();
  std::ofstream(other) << "something else\n";
  says(refused({other}), {"is no flight record of a rank: line 1: it does not begin as one."});
  says(refused({other + ".gone"}), {"there is no such file"});
  std::filesystem::resize_file(other, (1 << 20) + 1);
  says(refused({other}), {"it is too long for a flight record."});
  const test::TemporaryDirectory empty;
  says(refused({empty.path().string()}), {"no flight-RANK.txt lies there"});
}

/// A folder of strangers: a pipe, a link, nonsense, and a name that a terminal would obey.
TEST_F(Explain, WhatIsNoRecordIsLeftOut) {
  fail(2, [](World& world) {
    if (world.rank() == 1) throw FaultError("the machine is gone");
    barrier(world, Lane::kReduce, {"h.1", 7});
  });
  const std::filesystem::path pipe = directory_.path() / "flight-0007.txt";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  test::write_file(directory_.path() / "flight-0008.txt", "something else\n");
  std::filesystem::create_symlink("flight-0000.txt", directory_.path() / "flight-0009.txt");
  test::write_file(directory_.path() / "flight-\x1b[2J.txt", "something else\n");
  const std::string text = explained();
  says(text, {"flight-0007.txt: it is no regular file. It is left out.\n",
              "flight-0008.txt is no flight record of a rank: line 1: it does not begin as one. It is left out.\n",
              "flight-0009.txt: cannot open ", "flight- [2J.txt is no flight record", "2 of 2 ranks left a record",
              "rank 1 failed: the machine is gone"});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  const test::CommandResult named = test::run_aliquot({"doctor", "--explain", pipe.string()});
  EXPECT_EQ(named.code, 1);
  says(named.err, {"flight-0007.txt: it is no regular file."});
  for (const char* record : {"flight-0000.txt", "flight-0001.txt"}) std::filesystem::remove(directory_.path() / record);
  const test::CommandResult none = test::run_aliquot({"doctor", "--explain", directory_.path().string()});
  EXPECT_EQ(none.code, 1);
  says(none.err, {"flight- [2J.txt is no flight record of a rank: line 1"});
}

/// Two units that are told apart by their names alone: of an operation's mark records keep 8 bits.
TEST(ExplainUnits, OfTheSameMarkAreTwo) {
  const auto gather = [](std::string_view unit) { return describe_all_gather_in_place({nullptr, 0}, 4096, {unit, 3}); };
  std::string alike = "h.1";
  for (int unit = 1; gather(alike).packed() != gather("h.0").packed(); ++unit) alike = fmt::format("h.{}", unit);
  FlightRecorder first(0, 2, "0123", ""), second(1, 2, "0123", "");
  std::vector<FlightRecord> records;
  for (FlightRecorder* recorder : {&first, &second}) {
    const std::string unit = recorder == &first ? "h.0" : alike;
    recorder->begin(recorder->issue(recorder->add_group({0, 1}), Lane::kGather, 1, gather(unit), {unit, 3}));
    records.push_back(recorder->record("disagreed"));
  }
  says(explain(records), {"(h.0, step 3)", alike + ", step 3): another unit."});
}

/// A rank on a GPU, where collectives are noted when they are issued, and never when they begin or end.
class GpuRank {
 public:
  explicit GpuRank(int rank) : recorder_(rank, 3, "0123", "") {}
  int add_group(std::vector<int> members) { return recorder_.add_group(std::move(members)); }
  /// So many barriers, one after the other.
  void issue(Lane lane, int count, int group = 0) {
    for (int i = 0; i < count; ++i) {
      const uint64_t sequence = ++issued_[{group, lane}];
      const Label label{"h.1", static_cast<int64_t>(sequence)};
      recorder_.issue(group, lane, sequence, describe_barrier(label), label);
    }
  }
  FlightRecorder& recorder() { return recorder_; }
  FlightRecord record() const { return recorder_.record("told to end"); }

 private:
  FlightRecorder recorder_;
  std::map<std::pair<int, Lane>, uint64_t> issued_;
};

class ExplainOnGpus : public testing::Test {
 protected:
  ExplainOnGpus() {
    for (GpuRank* rank : {&ranks_[0], &ranks_[1], &ranks_[2]}) rank->add_group({0, 1, 2});
  }
  void all_issue(Lane lane, int count) {
    for (GpuRank& rank : ranks_) rank.issue(lane, count);
  }
  std::string explained() const { return explain({ranks_[0].record(), ranks_[1].record(), ranks_[2].record()}); }

  std::array<GpuRank, 3> ranks_{GpuRank(0), GpuRank(1), GpuRank(2)};
};

TEST_F(ExplainOnGpus, WhoIssuedLessNeverCame) {
  all_issue(Lane::kGather, 3);
  all_issue(Lane::kReduce, 3);
  all_issue(Lane::kGather, 1);
  ranks_[1].recorder().set_failure_location("backward h.0");
  for (const int rank : {0, 2}) ranks_[static_cast<size_t>(rank)].issue(Lane::kReduce, 1);
  ranks_[0].issue(Lane::kGather, 1);  // between nodes nobody waits before the GPU does
  says(
      explained(),
      {"Rank 1 never came to collective #4 of the reduce lane, barrier (h.1, step 4), which ranks 0 and 2 had issued.\n"
       "  rank 1 had last come to #3 there, barrier (h.1, step 3); its own thread was at backward h.0.\n",
       "  last issued barrier (h.1, step 4), #4 of the gather lane, "});
}

TEST_F(ExplainOnGpus, WhoLeftNoRecordIsNamed) {
  all_issue(Lane::kCompute, 1);
  all_issue(Lane::kGather, 4);
  ranks_[2].issue(Lane::kReduce, 1);
  says(
      explain({ranks_[0].record(), ranks_[2].record()}),
      {"Rank 1 never came to collective #4 of the gather lane, barrier (h.1, step 4), which ranks 0 and 2 had issued.\n"
       "  rank 1 left no record: it was killed, or its node is gone, or its file is elsewhere.\n"});
  says(
      explain({ranks_[2].record()}),
      {"Ranks 0 and 1 never came to collective #1 of the reduce lane, barrier (h.1, step 1), which rank 2 had issued.\n"
       "  ranks 0 and 1 left no record: they were killed, or their nodes are gone, or their files are elsewhere.\n"});
}

/// What one rank has forgotten already and another has not, both came to.
TEST_F(ExplainOnGpus, WhatIsForgottenIsNotMissed) {
  all_issue(Lane::kCompute, 2);
  all_issue(Lane::kGather, 254);
  ranks_[1].issue(Lane::kGather, 2);
  ranks_[2].issue(Lane::kGather, 2);
  const std::string text = explained();
  says(text, {"Rank 0 never came to collective #255 of the gather lane", "which ranks 1 and 2 had issued"});
  EXPECT_EQ(text.find("of the compute lane"), std::string::npos) << text;
  ranks_[0].issue(Lane::kGather, 2);
  for (const int rank : {0, 1}) ranks_[static_cast<size_t>(rank)].issue(Lane::kExchange, 1);
  says(explained(), {"Rank 2 never came to collective #1 of the exchange lane"});
}

TEST_F(ExplainOnGpus, WhoMissesAnotherIsNotTheOneThatIsMissed) {
  const int pair = ranks_[0].add_group({0, 1}), replicas = ranks_[0].add_group({0, 2});
  ranks_[1].add_group({0, 1});
  ranks_[2].issue(Lane::kReduce, 1, ranks_[2].add_group({0, 2}));
  ranks_[0].issue(Lane::kGather, 1, pair);
  EXPECT_NE(pair, replicas);
  says(explained(),
       {"Rank 1 never came to collective #1 of the gather lane, barrier (h.1, step 1), which rank 0 had issued.\n"
        "  rank 1 had come to none there before.\n"});
}

TEST_F(ExplainOnGpus, RanksThatIssuedAlikeAreSaidTo) {
  all_issue(Lane::kGather, 300);
  all_issue(Lane::kReduce, 3);
  says(explained(), {"All that is recorded went alike on all of them"});
}

}  // namespace
}  // namespace aliquot
