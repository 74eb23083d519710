// What aliquot doctor --explain makes of records that tell little: of ranks that were only ended, that are cut, of several runs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "apps/explain/explain.h"
#include "tests/checkpoint/support.h"
#include "tests/support/failing_world.h"

namespace aliquot {
namespace {

constexpr const char* kEnded = "told to end by the launcher (SIGTERM): another rank died, or somebody stopped the job";

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

/// Of one of three ranks that came to so many collectives; the third ended for nobody.
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

void add_meeting(FlightRecord& record, std::string_view purpose, double begun, double ended) {
  FlightEntry meeting;
  meeting.is_rendezvous = true;
  meeting.number = record.entries.size();
  meeting.sequence = record.rendezvous.size() + 1;
  meeting.unit = purpose;
  meeting.step = 20;
  meeting.issued = meeting.begun = begun;
  meeting.ended = ended;
  record.rendezvous.push_back(meeting);
}

bool lacks(const std::string& text, std::string_view part) { return text.find(part) == std::string::npos; }

/// Ranks that a launcher ends are in the middle of a step, one a little before the other.
TEST(ExplainRecords, WhoWasOnlyEndedIsNotBlamed) {
  const std::string text = explain({record_of(0, 3, kEnded), record_of(1, 2, kEnded), record_of(2, 3, kEnded)});
  says(text,
       {"3 of 3 ranks left a record.\nThe launcher told all of them to end, and none says that it failed: another rank "
        "died, or somebody stopped the job.\n"});
  for (const char* blame : {"never came", "came last", "had given up", "had not come"})
    EXPECT_TRUE(lacks(text, blame)) << text;
  says(explain({record_of(0, 3, kEnded), record_of(1, 2, "rank 1 failed: the disk is gone"), record_of(2, 3, kEnded)}),
       {"Rank 1 never came to collective #3"});
}

TEST(ExplainRecords, WhoIsGoneIsNamedAmongThoseThatWereEnded) {
  const std::string text = explain({record_of(0, 3, kEnded), record_of(2, 2, kEnded)});
  says(text, {"The launcher told all of them to end",
              "Rank 1 never came to collective #3 of the reduce lane, barrier (h.1, step "
              "3), where rank 0 waited.\n  rank 1 left no record: it was killed"});
  EXPECT_TRUE(lacks(text, "anks 1 and 2 never")) << text;
}

/// A job that hung is stopped by somebody before the deadline.
TEST(ExplainRecords, ALongWaitBeforeTheEndIsTold) {
  const std::string text =
      explain({record_of(0, 3, kEnded, 90), record_of(1, 2, kEnded, 90), record_of(2, 3, kEnded, 90)});
  says(text,
       {"Ranks 0 and 2 had waited 87.0 s by then in collective #3 of the reduce lane, barrier (h.1, step 3), to which "
        "rank 1 had not come.\n"});
  EXPECT_TRUE(lacks(text, "never came")) << text;
}

TEST(ExplainRecords, WhatACutRecordLacksIsHeldAgainstNobody) {
  const std::string why = "rank 0 waited 1 s";
  FlightRecord cut = record_of(1, 1, why);
  cut.complete = false;
  const std::string text = explain({record_of(0, 3, why), cut, record_of(2, 3, why)});
  says(text, {"The record of rank 1 is cut short: what it lacks may have come.\n"});
  EXPECT_TRUE(lacks(text, "never came")) << text;
  EXPECT_TRUE(lacks(text, "step 1)")) << "its last is not known: " << text;
  says(explain({record_of(0, 3, why), cut, record_of(2, 2, why)}), {"Rank 2 never came to collective #3"});
}

TEST(ExplainRecords, AMeetingIsNamedWhenRanksEndedOverIt) {
  const std::string why = "rank 0 waited 1 s for the other ranks to save together (step 20); rank 1 never arrived";
  const auto flights = [](const std::string& said) {
    std::vector<FlightRecord> records;
    for (const int rank : {0, 1, 2}) {
      FlightRecord& record = records.emplace_back(record_of(rank, 2, said));
      add_meeting(record, "set up", 0.1, 0.2);
      if (rank != 1) add_meeting(record, "save", 2.5, -1);
    }
    return records;
  };
  says(explain(flights(why)),
       {"Rank 1 never came to meeting #2 (save, step 20), where ranks 0 and 2 waited.\n  rank 1 had last "
        "come to #1 there, meeting (set up, step 20), which it ended 3.8 s before it gave up.\n",
        "  was in meeting #2 (save, step 20), for 1.5 s\n"});
  EXPECT_TRUE(lacks(explain(flights("rank 2 failed: the disk is gone")), "never came")) << "they save beside training";
  std::vector<FlightRecord> late = flights(why);
  add_meeting(late[1], "save", 3.9, -1);
  says(explain(late), {"Rank 1 came to meeting #2 (save, step 20), when ranks 0 and 2 had given up.\n"});
  late[1].rendezvous.back().unit = "load";
  says(explain(late),
       {"Ranks went apart at meeting #2: ranks 0 and 2 came with meeting (save, step 20), rank 1 with meeting "
        "(load, step 20): another purpose.\n"});
}

/// It waits in one for its parameters and in another for its gradients to be gone.
TEST(ExplainRecords, WhoWaitsInTwoLanesAtATimeWaitsOnce) {
  std::vector<FlightRecord> records;
  for (const int rank : {0, 1, 2}) {
    FlightRecord& record = records.emplace_back(record_of(rank, 0, "rank 0 failed: the disk is gone", 3.2));
    record.entries = {barrier_number(1, rank == 2 ? 3 : 1, 3), barrier_number(2, rank == 2 ? 3 : 1.1, 3)};
    record.entries[1].lane = Lane::kGather;
    record.entries[1].sequence = 1;
  }
  records[1].entries[0].begun = 1.5;
  says(
      explain(records),
      {"Rank 2 came last to 2 of 2 collectives, and the others waited up to 2.0 s of 2.2 s for it: most before barrier "
       "(h.1, step 1), 2.0 s.\n"});
}

/// On GPUs collectives have no times, and meetings have.
TEST(ExplainRecords, MeetingsOfRanksWithGpusAreTimed) {
  std::vector<FlightRecord> records;
  for (const int rank : {0, 1, 2}) {
    FlightRecord& record = records.emplace_back(
        record_of(rank, 2, "rank 0 waited 1 s for the other ranks to save together; rank 1 never arrived"));
    for (FlightEntry& entry : record.entries) entry.begun = entry.ended = -1;
    if (rank != 1) add_meeting(record, "save", 2.5, -1);
  }
  const std::string text = explain(records);
  says(text,
       {"Rank 1 never came to meeting #1 (save, step 20), where ranks 0 and 2 waited.\n", "  last issued barrier"});
}

class ExplainRuns : public testing::Test {
 protected:
  /// Written as `name`, changed so many hours ago.
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

/// A copy is new, and what it says is old.
TEST_F(ExplainRuns, TheNewestIsSaidByTheRecords) {
  write("flight-0000.txt", 0, "new", "2026-11-22T03:00:12Z", 48);
  write("flight-0001.txt", 1, "new", "2026-11-22T03:00:14Z", 48);
  write("flight-0002.txt", 2, "old", "2025-11-22T03:00:12Z", 0);
  const FlightRecords flights = read();
  ASSERT_EQ(flights.records.size(), 2u);
  EXPECT_EQ(flights.records[0].run, "new");
  ASSERT_EQ(flights.skip_messages.size(), 1u);
  EXPECT_EQ(flights.skip_messages[0], (directory_.path() / "flight-0002.txt").string() +
                                          " is left out: of another run, that ended at 2025-11-22 03:00:12 UTC.");
}

TEST_F(ExplainRuns, RecordsOfBeforeTheyHadATimeGoByTheirFiles) {
  write("flight-0000.txt", 0, "one", "", 2);
  write("flight-0001.txt", 1, "two", "", 1);
  EXPECT_EQ(read().records[0].run, "two");
  says(read().skip_messages[0], {"flight-0000.txt is left out: of another run, which says no time."});
  write("flight-0002.txt", 2, "three", "2025-11-22T03:00:12Z", 3);
  EXPECT_EQ(read().records[0].run, "three") << "what says a time is of a later program";
  EXPECT_EQ(read().skip_messages.size(), 2u);
}

TEST_F(ExplainRuns, OfTwoOfTheSameRankOneIsNamed) {
  write("flight-0000.txt", 0, "new", "2026-11-22T03:00:12Z", 1);
  write("flight-copy.txt", 0, "new", "2026-11-22T03:00:11Z", 0);
  const FlightRecords flights = read();
  ASSERT_EQ(flights.records.size(), 1u);
  EXPECT_EQ(flights.records[0].written_utc, "2026-11-22T03:00:12Z");
  ASSERT_EQ(flights.skip_messages.size(), 1u);
  says(flights.skip_messages[0],
       {"flight-copy.txt is left out: ", "flight-0000.txt is of the same rank of the same run."});
  const auto file = directory_.path() / "flight-0000.txt";
  EXPECT_TRUE(read_flights({file, file}).skip_messages.empty()) << "named twice is not two";
}

TEST_F(ExplainRuns, ManyFilesOfAnotherRunAreCounted) {
  for (int rank = 0; rank < 3; ++rank)
    write(fmt::format("flight-{:04}.txt", rank), rank, "new", "2026-11-22T03:00:12Z", 0);
  for (int copy = 0; copy < 2; ++copy)
    for (int rank = 0; rank < 3; ++rank)
      write(fmt::format("flight-1{}{}.txt", copy, rank), rank, fmt::format("old {}", copy), "2026-11-21T03:00:12Z", 0);
  const FlightRecords flights = read();
  EXPECT_EQ(flights.records.size(), 3u);
  ASSERT_EQ(flights.skip_messages.size(), 2u);
  says(flights.skip_messages[1],
       {"flight-110.txt, ", "flight-112.txt are left out: of another run, that ended at 2026-11-21"});
}

}  // namespace
}  // namespace aliquot
