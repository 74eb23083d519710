// Tests what aliquot doctor --explain reports for incomplete evidence: ranks that the launcher ended, truncated
// records, and records of several runs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/explain/explain.h"
#include "tests/checkpoint/support.h"
#include "tests/support/failing_world.h"

namespace aliquot {
namespace {

constexpr const char* kEnded = "told to end by the launcher (SIGTERM): another rank died, or the job was stopped";

FlightEntry barrier_number(uint64_t number, double begun, double ended) {
  FlightEntry entry;
  entry.number = entry.sequence = number;
  entry.lane = Lane::kReduce;
  entry.what = describe_barrier({"h.1"});
  entry.unit = "h.1";
  entry.step = static_cast<int64_t>(number);
  entry.issued = entry.begun = begun;
  entry.ended = ended;
  return entry;
}

/// Returns the record of one of three ranks, which entered `count` collectives. The third collective never ended.
FlightRecord record_of(int rank, uint64_t count, const std::string& why, double written = 4) {
  FlightRecord record;
  record.run = "0123";
  record.rank = rank;
  record.rank_count = 3;
  record.why = why;
  record.written = written;
  record.groups = {{0, 1, 2}};
  for (uint64_t number = 1; number <= count; ++number) {
    const auto begun = static_cast<double>(number);
    record.entries.push_back(barrier_number(number, begun, number == 3 ? -1 : begun + 0.01));
  }
  return record;
}

void add_rendezvous(FlightRecord& record, std::string_view purpose, double begun, double ended) {
  FlightEntry rendezvous;
  rendezvous.is_rendezvous = true;
  rendezvous.number = record.entries.size();
  rendezvous.sequence = record.rendezvous.size() + 1;
  rendezvous.unit = purpose;
  rendezvous.step = 20;
  rendezvous.issued = rendezvous.begun = begun;
  rendezvous.ended = ended;
  record.rendezvous.push_back(rendezvous);
}

bool lacks(const std::string& text, std::string_view part) { return text.find(part) == std::string::npos; }

/// Reports of runs without a pipeline name replicas, but not pipeline stages.
TEST(ExplainRecords, CoordinatesAreNamedWithReplicas) {
  std::vector<FlightRecord> records{record_of(0, 3, kEnded), record_of(1, 3, kEnded), record_of(2, 3, kEnded)};
  for (FlightRecord& record : records) record.mesh = {{1, 3, 1, 1}, {0, record.rank, 0, 0}};
  expect_contains(explain(records), {"\nrank 1 (replica 1): same message as rank 0\n"});
  EXPECT_TRUE(lacks(explain(records), "pipeline stage"));
  for (FlightRecord& record : records) record.mesh = {{1, 1, 3, 1}, {0, 0, record.rank, 0}};
  expect_contains(explain(records), {"\nrank 1: same message as rank 0\n"});
}

/// When the launcher ends the ranks, they may be at different operations of a step.
TEST(ExplainRecords, RanksEndedByTheLauncherAreNotBlamed) {
  const std::string text = explain({record_of(0, 3, kEnded), record_of(1, 2, kEnded), record_of(2, 3, kEnded)});
  expect_contains(text, {"3 of 3 ranks wrote a flight record.\nThe launcher ended all of these ranks, and none of them "
                         "recorded a failure: "
                         "another rank died, or the job was stopped.\n"});
  for (const char* blame : {"never reached", "was the last", "had stopped waiting", "had not reached"})
    EXPECT_TRUE(lacks(text, blame)) << text;
  expect_contains(
      explain({record_of(0, 3, kEnded), record_of(1, 2, "rank 1 failed: the disk is gone"), record_of(2, 3, kEnded)}),
      {"Rank 1 never reached collective #3"});
}

TEST(ExplainRecords, RankWithoutARecordIsNamedAmongEndedRanks) {
  const std::string text = explain({record_of(0, 3, kEnded), record_of(2, 2, kEnded)});
  expect_contains(text, {"The launcher ended all of these ranks",
                         "Rank 1 never reached collective #3 of the reduce lane, barrier (h.1, step "
                         "3), where rank 0 waited.\n  rank 1 left no record: it was killed"});
  EXPECT_TRUE(lacks(text, "anks 1 and 2 never")) << text;
}

/// A job hangs, and a user stops it before the deadline has passed.
TEST(ExplainRecords, LongWaitBeforeTheJobEndedIsReported) {
  const std::string text =
      explain({record_of(0, 3, kEnded, 90), record_of(1, 2, kEnded, 90), record_of(2, 3, kEnded, 90)});
  expect_contains(text,
                  {"Ranks 0 and 2 had waited 87.0 s in collective #3 of the reduce lane, barrier (h.1, step 3), which "
                   "rank 1 had not reached.\n"});
  EXPECT_TRUE(lacks(text, "never reached")) << text;
}

TEST(ExplainRecords, CollectivesLostByTruncationAreNotMissing) {
  const std::string why = "rank 0 waited 1 s";
  FlightRecord cut = record_of(1, 1, why);
  cut.complete = false;
  const std::string text = explain({record_of(0, 3, why), cut, record_of(2, 3, why)});
  expect_contains(text, {"The record of rank 1 is truncated: collectives that it lacks are not counted as missed.\n"});
  EXPECT_TRUE(lacks(text, "never reached")) << text;
  EXPECT_TRUE(lacks(text, "step 1)")) << "the last collective of the truncated record is unknown: " << text;
  expect_contains(explain({record_of(0, 3, why), cut, record_of(2, 2, why)}), {"Rank 2 never reached collective #3"});
}

TEST(ExplainRecords, RendezvousIsReportedIfRanksFailedInIt) {
  const std::string why = "rank 0 waited 1 s for the other ranks to save together (step 20); rank 1 never arrived";
  const auto flights = [](const std::string& reason) {
    std::vector<FlightRecord> records;
    for (const int rank : {0, 1, 2}) {
      FlightRecord& record = records.emplace_back(record_of(rank, 2, reason));
      add_rendezvous(record, "set up", 0.1, 0.2);
      if (rank != 1) add_rendezvous(record, "save", 2.5, -1);
    }
    return records;
  };
  expect_contains(explain(flights(why)),
                  {"Rank 1 never reached rendezvous #2 (save, step 20), where ranks 0 and 2 waited.\n  rank 1 had last "
                   "reached #1, rendezvous (set up, step 20), which it finished 3.8 s before it wrote its record.\n",
                   "  was waiting in rendezvous #2 (save, step 20) for 1.5 s\n"});
  EXPECT_TRUE(lacks(explain(flights("rank 2 failed: the disk is gone")), "never reached"))
      << "ranks save in the background, so a wait in the rendezvous is not the cause of the failure";
  std::vector<FlightRecord> late = flights(why);
  add_rendezvous(late[1], "save", 3.9, -1);
  expect_contains(explain(late),
                  {"Rank 1 reached rendezvous #2 (save, step 20) after ranks 0 and 2 had stopped waiting.\n"});
  late[1].rendezvous.back().unit = "load";
  expect_contains(
      explain(late),
      {"Ranks disagree at rendezvous #2: ranks 0 and 2 issued rendezvous (save, step 20), rank 1 issued rendezvous "
       "(load, step 20): different purpose.\n"});
}

/// A rank may wait for parameters in one lane and for gradients in another at the same time.
TEST(ExplainRecords, SimultaneousWaitsInTwoLanesCountOnce) {
  std::vector<FlightRecord> records;
  for (const int rank : {0, 1, 2}) {
    FlightRecord& record = records.emplace_back(record_of(rank, 0, "rank 0 failed: the disk is gone", 3.2));
    record.entries = {barrier_number(1, rank == 2 ? 3 : 1, 3), barrier_number(2, rank == 2 ? 3 : 1.1, 3)};
    record.entries[1].lane = Lane::kGather;
    record.entries[1].sequence = 1;
  }
  records[1].entries[0].begun = 1.5;
  expect_contains(explain(records),
                  {"Rank 2 was the last to reach 2 of 2 collectives. Of the other ranks, one waited 2.0 s for this "
                   "rank, of 2.2 s in its record; the longest single wait was 2.0 s, in barrier (h.1, step 1).\n"});
}

/// Records of GPU ranks contain the begin and end times of rendezvous, but not those of collectives.
TEST(ExplainRecords, RendezvousOfGpuRanksHaveTimes) {
  std::vector<FlightRecord> records;
  for (const int rank : {0, 1, 2}) {
    FlightRecord& record = records.emplace_back(
        record_of(rank, 2, "rank 0 waited 1 s for the other ranks to save together; rank 1 never arrived"));
    for (FlightEntry& entry : record.entries) entry.begun = entry.ended = -1;
    if (rank != 1) add_rendezvous(record, "save", 2.5, -1);
  }
  const std::string text = explain(records);
  expect_contains(text, {"Rank 1 never reached rendezvous #1 (save, step 20), where ranks 0 and 2 waited.\n",
                         "  last issued barrier"});
}

class ExplainRuns : public testing::Test {
 protected:
  /// Writes a record to the file `name`, and sets the file's modification time to `hours_ago` hours before now.
  void write(const std::string& name, int rank, const std::string& run, const std::string& utc, int hours_ago) const {
    FlightRecord record = record_of(rank, 2, "rank 0 failed");
    record.run = run;
    record.written_utc = utc;
    const auto path = directory_.path() / name;
    test::write_file(path, flight_text(record));
    std::filesystem::last_write_time(path,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours_ago));
  }
  FlightRecords read() const { return read_flights({directory_.path()}); }
  test::TemporaryDirectory directory_;
};

/// A copied file has a new modification time, but the record in it is old.
TEST_F(ExplainRuns, NewestRunIsChosenByTheTimesInRecords) {
  write("flight-0000.txt", 0, "new", "2026-11-22T03:00:12Z", 48);
  write("flight-0001.txt", 1, "new", "2026-11-22T03:00:14Z", 48);
  write("flight-0002.txt", 2, "old", "2025-11-22T03:00:12Z", 0);
  const FlightRecords flights = read();
  ASSERT_EQ(flights.records.size(), 2u);
  EXPECT_EQ(flights.records[0].run, "new");
  ASSERT_EQ(flights.skip_messages.size(), 1u);
  EXPECT_EQ(flights.skip_messages[0],
            (directory_.path() / "flight-0002.txt").string() +
                " skipped: from another run or world, which ended at 2025-11-22 03:00:12 UTC.");
}

TEST_F(ExplainRuns, RecordsWithoutATimeUseTheTimeOfTheirFile) {
  write("flight-0000.txt", 0, "one", "", 2);
  write("flight-0001.txt", 1, "two", "", 1);
  EXPECT_EQ(read().records[0].run, "two");
  expect_contains(read().skip_messages[0],
                  {"flight-0000.txt skipped: from another run or world, which recorded no date."});
  write("flight-0002.txt", 2, "three", "2025-11-22T03:00:12Z", 3);
  EXPECT_EQ(read().records[0].run, "three") << "a record that contains a time is from a newer version";
  EXPECT_EQ(read().skip_messages.size(), 2u);
}

TEST_F(ExplainRuns, DuplicateOfARankIsSkippedWithAMessage) {
  write("flight-0000.txt", 0, "new", "2026-11-22T03:00:12Z", 1);
  write("flight-copy.txt", 0, "new", "2026-11-22T03:00:11Z", 0);
  const FlightRecords flights = read();
  ASSERT_EQ(flights.records.size(), 1u);
  EXPECT_EQ(flights.records[0].written_utc, "2026-11-22T03:00:12Z");
  ASSERT_EQ(flights.skip_messages.size(), 1u);
  expect_contains(flights.skip_messages[0],
                  {"flight-copy.txt skipped: ", "flight-0000.txt is from the same rank and run."});
  const auto file = directory_.path() / "flight-0000.txt";
  EXPECT_TRUE(read_flights({file, file}).skip_messages.empty()) << "the same file given twice is read once";
}

TEST_F(ExplainRuns, FilesOfAnotherRunShareOneMessage) {
  for (int rank = 0; rank < 3; ++rank)
    write(fmt::format("flight-{:04}.txt", rank), rank, "new", "2026-11-22T03:00:12Z", 0);
  for (int copy = 0; copy < 2; ++copy)
    for (int rank = 0; rank < 3; ++rank)
      write(fmt::format("flight-1{}{}.txt", copy, rank), rank, fmt::format("old {}", copy), "2026-11-21T03:00:12Z", 0);
  const FlightRecords flights = read();
  EXPECT_EQ(flights.records.size(), 3u);
  ASSERT_EQ(flights.skip_messages.size(), 2u);
  expect_contains(flights.skip_messages[1],
                  {"flight-110.txt, ", "flight-112.txt skipped: from another run or world, which ended at 2026-11-21"});
}

/// Returns the record of one of two ranks. Sets the lanes and the times of barriers 1, 2, ...
FlightRecord record_of_lanes(int rank, const std::vector<std::pair<Lane, FlightEntry>>& entries) {
  FlightRecord record = record_of(rank, 0, "rank 0 waited 1 s in barrier #1");
  record.rank_count = 2;
  record.groups = {{0, 1}};
  std::map<Lane, uint64_t> counts;
  for (const auto& [lane, entry] : entries) {
    FlightEntry& added = record.entries.emplace_back(entry);
    added.number = record.entries.size();
    added.lane = lane;
    added.sequence = ++counts[lane];
  }
  return record;
}

/// Each rank waits for the other one, but rank 0 had issued the missing collective before its own wait began.
TEST(ExplainRecords, ALaneThatDoesNotRunIsNotADeadlock) {
  FlightEntry not_reached = barrier_number(1, 1, -1);
  not_reached.begun = -1;
  const FlightEntry waiting = barrier_number(1, 1, -1);
  const std::string text = explain({record_of_lanes(0, {{Lane::kReduce, not_reached}, {Lane::kGather, waiting}}),
                                    record_of_lanes(1, {{Lane::kReduce, waiting}})});
  expect_contains(text,
                  {"Rank 0 never reached collective #1 of the reduce lane",
                   "  rank 0 had issued it 3.0 s before it wrote its record, but its lane had not reached it.\n"});
  // In the other order, rank 0 may have waited before it could reach the collective.
  expect_contains(explain({record_of_lanes(0, {{Lane::kGather, waiting}, {Lane::kReduce, not_reached}}),
                           record_of_lanes(1, {{Lane::kReduce, waiting}})}),
                  {"Deadlock: the ranks wait for one another.\n"});
}

/// Rank 1 waits for rank 3, which waits in no recorded collective, but rank 2 ran model code for a long time.
TEST(ExplainRecords, ALateRankThatRanModelCodePrecedesAMissingRank) {
  const FlightEntry waited = barrier_number(1, 1, -1), late = barrier_number(1, 3.1, 3.2);
  std::vector<FlightRecord> records = {record_of_lanes(0, {{Lane::kReduce, waited}}),
                                       record_of_lanes(1, {{Lane::kGather, waited}}),
                                       record_of_lanes(2, {{Lane::kReduce, late}}), record_of_lanes(3, {})};
  for (FlightRecord& record : records) {
    record.rank_count = 4;
    record.groups = {{record.rank % 2, record.rank % 2 + 2}};
  }
  records[2].model_code = {{.what = "backward h.1", .micro_batch = 0, .step = 1, .begun = 1, .ended = 3.1}};
  expect_contains(explain(records), {"Rank 2 reached collective #1 of the reduce lane",
                                     "  rank 2 ran backward h.1 (micro-batch 0, step 1) for 2.1 s.\n"});
}

}  // namespace
}  // namespace aliquot
