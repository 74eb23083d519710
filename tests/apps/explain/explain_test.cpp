// Tests what aliquot doctor --explain reports about the flight records of runs that fail.
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

/// Runs worlds of threads that fail and write their flight records to a temporary directory.
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

TEST_F(Explain, NamesTheRankWithAnotherByteCount) {
  fail(4, [](World& world) {
    auto& ranks = world.communicator();
    const auto stream = world.device().make_stream(Lane::kGather);
    const auto gathered = ranks.allocate(4 * 4096, Category::kSlots, "gathered");
    for (int step = 1; step <= 3; ++step) {
      const int64_t bytes = step == 3 && world.rank() == 2 ? 2048 : 4096;
      ranks.all_gather_in_place(*stream, {&gathered, 0}, bytes, {"h.1", step});
    }
    stream->synchronize();
  });
  const std::string text = explained();
  EXPECT_TRUE(
      std::regex_search(text, std::regex("^4 of 4 ranks wrote a flight record, (at|from) [0-9]{4}-[0-9]{2}-[0-9]{2} "
                                         "[0-9:]{8} UTC[^\n]*\\.\n")))
      << text;
  expect_contains(
      text, {".\n"
             "Ranks disagree at collective #3 of the gather lane: ranks 0, 1 and 3 issued all-gather of 4096 "
             "bytes in place (h.1, step 3), rank 2 issued all-gather of 2048 bytes in place (h.1, step 3): different "
             "count.\n"});
}

/// A rank that is killed while it writes its record leaves a temporary file. The rank's next write removes this file.
/// Temporary files of other ranks stay.
TEST_F(Explain, WritingARecordRemovesTheTemporaryFileOfTheRank) {
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

TEST_F(Explain, NamesTheRankThatNeverArrived) {
  fail(3, [](World& world) {
    barrier(world, Lane::kReduce, {"h.1", 7});
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    if (world.rank() == 1) throw FaultError("too late");
    barrier(world, Lane::kReduce, {"h.2", 7});
  });
  expect_contains(explained(),
                  {"Rank 1 never reached collective #2 of the reduce lane, barrier (h.2, step 7), where ranks 0 and 2 "
                   "waited.\n  rank 1 had last reached #1, barrier (h.1, step 7), which it finished "});
}

TEST_F(Explain, NamesTheRankThatArrivedAfterOthersGaveUp) {
  fail(3, [](World& world) {
    barrier(world, Lane::kReduce, {"h.1", 7});
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    barrier(world, Lane::kReduce, {"h.2", 7});
    barrier(world, Lane::kReduce, {"h.3", 7});
  });
  expect_contains(explained(),
                  {"Rank 1 reached collective #2 of the reduce lane, barrier (h.2, step 7) after ranks 0 and 2 had "
                   "stopped waiting.\n"});
}

TEST_F(Explain, NamesTheSlowRank) {
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
  expect_contains(explained(), {"Rank 2 was the last to reach ", " s, in barrier (h.1, step 30).",
                                "rank 0 failed: the disk is gone"});
}

/// During a save, ranks wait for one another in a rendezvous on the host, not in a collective.
TEST_F(Explain, NamesTheRankThatNeverArrivedAtASave) {
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
    expect_contains(result.err,
                    {"rank 0 waited 1 s for the other ranks to save together (step 20); rank 1 never arrived"});
    const std::string text = explained();
    EXPECT_TRUE(std::regex_search(text, std::regex("\nRank 1 (never )?reached rendezvous #[0-9]+ \\(save, step 20\\)")))
        << text;
    expect_contains(text, {"  was waiting in rendezvous #"});
  }
}

TEST_F(Explain, NamesTheKilledRankWithoutARecord) {
  if (!test::has_mpi()) GTEST_SKIP() << "mpirun is not installed, or the build does not include MPI";
  const std::string records = directory_.path().string();
  test::run_program("/usr/bin/env",
                    {"mpirun", "-n", "3", test::aliquot_program(), "train", "--layers", "1", "--width", "32", "--steps",
                     "4", "--threads", "1", "--quiet"},
                    test::mpirun_environment({"ALIQUOT_FAULT=rank=1,step=3,op=backward,kind=kill",
                                              "ALIQUOT_FLIGHT_DIR=" + records, "OMPI_MCA_rmaps_base_oversubscribe=1"}));
  expect_contains(explained(), {"2 of 3 ranks wrote a flight record", " never reached collective #",
                                "  rank 1 left no record: it was killed", "told to end by the launcher (SIGTERM)"});
}

/// mpirun sends SIGCONT one second before it ends the ranks, and also when a user continues a job.
TEST_F(Explain, AProvisionalRecordIsRemovedOrReplaced) {
  const std::filesystem::path file = directory_.path() / flight_file_name(0);
  FlightRecorder recorder(0, 1, "run", directory_.path().string());
  write_provisional_flight_records("told to end");
  EXPECT_NE(test::read_file(file).find("told to end"), std::string::npos);
  discard_provisional_flight_records();
  EXPECT_FALSE(std::filesystem::exists(file));
  write_provisional_flight_records("told to end");
  recorder.write("the machine is gone");
  EXPECT_NE(test::read_file(file).find("the machine is gone"), std::string::npos);
  discard_provisional_flight_records();
  write_provisional_flight_records("told to end");
  EXPECT_NE(test::read_file(file).find("the machine is gone"), std::string::npos);
}

TEST_F(Explain, RejectsFilesThatAreNotRecords) {
  const auto refused = [](const std::vector<std::string>& files) {
    std::vector<std::string> words{"doctor", "--explain"};
    words.insert(words.end(), files.begin(), files.end());
    const test::CommandResult result = test::run_aliquot(words);
    EXPECT_EQ(result.code, 1);
    return result.err;
  };
  const std::string other = (directory_.path() / "flight-0000.txt").string();
  std::ofstream(other) << "something else\n";
  expect_contains(refused({other}),
                  {"is not a valid flight record: line 1: expected the title \"aliquot flight record 2\"."});
  expect_contains(refused({other + ".gone"}), {"there is no such file"});
  std::filesystem::resize_file(other, (1 << 20) + 1);
  expect_contains(refused({other}), {"it has 1048577 bytes, but a flight record has at most 1 MiB."});
  const test::TemporaryDirectory empty;
  expect_contains(refused({empty.path().string()}), {"the directory has no file named flight-RANK.txt"});
}

/// The folder also has a pipe, a symbolic link, a file with other contents, and a name with an escape sequence.
TEST_F(Explain, SkipsFilesInAFolderThatAreNotRecords) {
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
  expect_contains(text, {"flight-0007.txt: it is not a regular file. The file is skipped.\n",
                         "flight-0008.txt is not a valid flight record: line 1: expected the title \"aliquot flight "
                         "record 2\". The file is skipped.\n",
                         "flight-0009.txt: cannot open ", "flight- [2J.txt is not a valid flight record",
                         "2 of 2 ranks wrote a flight record", "rank 1 failed: the machine is gone"});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  const test::CommandResult named = test::run_aliquot({"doctor", "--explain", pipe.string()});
  EXPECT_EQ(named.code, 1);
  expect_contains(named.err, {"flight-0007.txt: it is not a regular file."});
  for (const char* record : {"flight-0000.txt", "flight-0001.txt"}) std::filesystem::remove(directory_.path() / record);
  const test::CommandResult none = test::run_aliquot({"doctor", "--explain", directory_.path().string()});
  EXPECT_EQ(none.code, 1);
  expect_contains(none.err, {"flight- [2J.txt is not a valid flight record: line 1"});
}

/// A record keeps only 8 bits of an operation's fingerprint. If these are equal for two units, explain() compares the
/// names.
TEST(ExplainUnits, WithEqualFingerprintsAreDistinguishedByName) {
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
  expect_contains(explain(records), {"(h.0, step 3)", alike + ", step 3): different unit."});
}

/// A rank on a GPU. It records when a collective is issued, but not when it begins and ends.
class GpuRank {
 public:
  explicit GpuRank(int rank) : recorder_(rank, 3, "0123", "") {}
  int add_group(std::vector<int> members) { return recorder_.add_group(std::move(members)); }
  /// Issues `count` barriers.
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

TEST_F(ExplainOnGpus, NamesTheRankThatIssuedFewerCollectives) {
  all_issue(Lane::kGather, 3);
  all_issue(Lane::kReduce, 3);
  all_issue(Lane::kGather, 1);
  ranks_[1].recorder().set_failure_location("backward h.0");
  for (const int rank : {0, 2}) ranks_[static_cast<size_t>(rank)].issue(Lane::kReduce, 1);
  ranks_[0].issue(Lane::kGather, 1);  // a rank may issue more collectives while its GPU waits
  expect_contains(
      explained(),
      {"Rank 1 never reached collective #4 of the reduce lane, barrier (h.1, step 4), which ranks 0 and 2 had issued.\n"
       "  rank 1 had last reached #3, barrier (h.1, step 3); its training thread was at backward h.0.\n",
       "  last issued barrier (h.1, step 4), #4 of the gather lane, "});
}

TEST_F(ExplainOnGpus, NamesRanksWithoutARecord) {
  all_issue(Lane::kCompute, 1);
  all_issue(Lane::kGather, 4);
  ranks_[2].issue(Lane::kReduce, 1);
  expect_contains(
      explain({ranks_[0].record(), ranks_[2].record()}),
      {"Rank 1 never reached collective #4 of the gather lane, barrier (h.1, step 4), which ranks 0 and 2 had issued.\n"
       "  rank 1 left no record: it was killed, its node failed, or its file is in another directory.\n"});
  expect_contains(
      explain({ranks_[2].record()}),
      {"Ranks 0 and 1 never reached collective #1 of the reduce lane, barrier (h.1, step 1), which rank 2 had issued.\n"
       "  ranks 0 and 1 left no record: they were killed, their nodes failed, or their files are in another "
       "directory.\n"});
}

/// A record keeps the last 256 collectives. If an old collective is in one record and was dropped from another, both
/// ranks issued it.
TEST_F(ExplainOnGpus, DroppedCollectivesAreNotReportedAsMissing) {
  all_issue(Lane::kCompute, 2);
  all_issue(Lane::kGather, 254);
  ranks_[1].issue(Lane::kGather, 2);
  ranks_[2].issue(Lane::kGather, 2);
  const std::string text = explained();
  expect_contains(text, {"Rank 0 never reached collective #255 of the gather lane", "which ranks 1 and 2 had issued"});
  EXPECT_EQ(text.find("of the compute lane"), std::string::npos) << text;
  ranks_[0].issue(Lane::kGather, 2);
  for (const int rank : {0, 1}) ranks_[static_cast<size_t>(rank)].issue(Lane::kExchange, 1);
  expect_contains(explained(), {"Rank 2 never reached collective #1 of the exchange lane"});
}

TEST_F(ExplainOnGpus, RanksThatWaitInOtherGroupsAreNotBlamed) {
  const int pair = ranks_[0].add_group({0, 1}), replicas = ranks_[0].add_group({0, 2});
  ranks_[1].add_group({0, 1});
  ranks_[2].issue(Lane::kReduce, 1, ranks_[2].add_group({0, 2}));
  ranks_[0].issue(Lane::kGather, 1, pair);
  EXPECT_NE(pair, replicas);
  expect_contains(
      explained(),
      {"Rank 1 never reached collective #1 of the gather lane, barrier (h.1, step 1), which rank 0 had issued.\n"
       "  rank 1 had not reached any collective before it.\n"});
}

TEST_F(ExplainOnGpus, ReportsThatEqualRecordsAgree) {
  all_issue(Lane::kGather, 300);
  all_issue(Lane::kReduce, 3);
  expect_contains(explained(), {"The records show no mismatch, no missing rank and no straggler."});
}

}  // namespace
}  // namespace aliquot
