// Tests how flight records are written to files and read from them.
#include <atomic>
#include <csignal>
#include <gtest/gtest.h>
#include <regex>
#include <set>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "apps/explain/collectives.h"
#include "apps/explain/explain.h"
#include "kernels/system/error.h"
#include "kernels/system/log.h"
#include "sharding/flight/flight_recorder.h"
#include "tests/apps/explain/flight_text.h"
#include "tests/checkpoint/support.h"
#include "tests/support/failing_world.h"

namespace aliquot {
namespace {

using test::refusal_of;
using test::with;

/// After a rank has failed, the launcher may end it before it writes its record. The file must still contain the
/// failure.
TEST(FlightFile, KeepsTheFirstCapture) {
  const test::TemporaryDirectory directory;
  FlightRecorder recorder(1, 2, "0123", directory.path().string());
  const int group = recorder.add_group({0, 1});
  recorder.issue(group, Lane::kReduce, 1, describe_barrier({"h.1"}), {"h.1"});
  recorder.set_failure_location("backward h.1");
  recorder.capture("rank 1 failed: the disk is gone");
  recorder.issue(group, Lane::kReduce, 2, describe_barrier({"h.2"}), {"h.2"});
  write_flight_records("told to end by the launcher");
  recorder.write("rank 1 failed: the disk is gone");
  const std::vector<FlightRecord> records = read_flights({directory.path()}).records;
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].why, "rank 1 failed: the disk is gone");
  EXPECT_EQ(records[0].place, "backward h.1");
  EXPECT_EQ(records[0].entries.size(), 1u);
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

/// Without names of worlds, all of these worlds would write flight-0000.txt.
TEST(FlightFile, EveryWorldOfAProgramHasItsOwnFiles) {
  const test::TemporaryDirectory directory, other;
  WorldOptions options{.device = DeviceChoice::kHost, .flight_directory = directory.path().string()};
  const auto fail = [&options](
                        int rank_count, const char* why, const std::function<void()>& before = [] {}) {
    const auto body = [&](World& world) {
      if (world.rank() == 0) before();
      throw std::runtime_error(why);
    };
    EXPECT_THROW(World::threads(rank_count, body, options), std::runtime_error);
  };
  // A world that exists while the first one does, and a world after both.
  fail(2, "the first world", [&] { fail(1, "the second world"); });
  World::threads(
      1, [](World&) {}, options);  // writes no record, so its name is free again
  fail(1, "the third world");
  options.flight_directory = other.path().string();
  fail(1, "a world of another directory");

  EXPECT_EQ(names_in(directory.path()),
            (std::set<std::string>{"flight-0000.txt", "flight-0001.txt", "flight-0000-world-0-1.txt",
                                   "flight-0000-world-0-2.txt"}));
  EXPECT_EQ(names_in(other.path()), std::set<std::string>{"flight-0000.txt"});
  const auto why = [&](const char* name) { return read_flights({directory.path() / name}).records.at(0).why; };
  EXPECT_EQ(why("flight-0000.txt"), "rank 0 failed: the first world");
  EXPECT_EQ(why("flight-0000-world-0-1.txt"), "rank 0 failed: the second world");
  EXPECT_EQ(why("flight-0000-world-0-2.txt"), "rank 0 failed: the third world");
  // The records of a directory are those of one world. A message names the others.
  const FlightRecords flights = read_flights({directory.path()});
  EXPECT_EQ(flights.skip_messages.size(), 2u);
}

/// Without canonical names of directories, both worlds would write flight-0000.txt.
TEST(FlightFile, SpellingsOfADirectoryAreTheSameDirectory) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path folder = directory.path() / "runs", link = directory.path() / "link";
  for (const bool exists : {false, true}) {
    if (exists) std::filesystem::create_directory(folder);
    if (exists) std::filesystem::create_directory_symlink(folder, link);
    const FlightWorld first = FlightWorld::reserve(folder.string(), 0);
    const std::string relative = std::filesystem::proximate(folder).string();
    EXPECT_EQ(first.name(), "");
    EXPECT_EQ(FlightWorld::reserve(folder.string() + "/", 0).name(), "0-1");
    EXPECT_EQ(FlightWorld::reserve(relative, 0).name(), "0-1");
    EXPECT_EQ(FlightWorld::reserve("./" + relative + "/", 0).name(), "0-1");
    EXPECT_EQ(FlightWorld::reserve((exists ? link : folder).string(), 0).name(), "0-1");
    if (exists) FlightWorld::join(relative + "/", "").keep();  // a rank of the first world
  }
  EXPECT_EQ(FlightWorld::reserve(folder.string(), 0).name(), "0-1") << "the name was not kept";
}

std::atomic<bool> writing{false}, released{false};

/// Simulates a slow write: blocks until `released` is true.
void write_slowly(std::string_view) noexcept {
  writing = true;
  while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// A signal handler ends the process after write_flight_records() returns, so the file must be complete by then.
TEST(FlightFile, SecondWriterWaitsUntilTheFileIsWritten) {
  const LogSink before = set_log_sink(write_slowly);
  FlightRecorder recorder(1, 2, "0123", "/no/such/folder");
  std::thread first([&] { recorder.write("rank 1 failed"); });
  while (!writing) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::atomic<bool> back{false};
  std::thread second([&] {
    write_flight_records("told to end by the launcher");
    back = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(back);
  released = true;
  first.join();
  second.join();
  set_log_sink(before);
}

TEST(FlightFile, HasTheTimeOfWriting) {
  const auto record_of = [](int rank, const std::string& written_utc) {
    FlightRecord record = FlightRecorder(rank, 4, "0123", "").record("");
    EXPECT_TRUE(std::regex_match(record.written_utc, std::regex("20[0-9-]{8}T[0-9:]{8}Z"))) << record.written_utc;
    record.written_utc = written_utc;
    const std::string text = flight_text(record);
    EXPECT_EQ(flight_text(parse_flight(text, "it")), text);
    return parse_flight(text, "it");
  };
  const std::string three = "2026-11-22T03:00:12Z", later = "2026-11-22T03:00:14Z";
  const auto first_line = [](std::vector<FlightRecord> records) {
    const std::string text = explain(std::move(records));
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(first_line({record_of(0, three), record_of(1, three), record_of(2, ""), record_of(3, three)}),
            "4 of 4 ranks wrote a flight record, at 2026-11-22 03:00:12 UTC.");
  EXPECT_EQ(first_line({record_of(0, later), record_of(2, three)}),
            "2 of 4 ranks wrote a flight record, from 2026-11-22 03:00:12 UTC to 2026-11-22 03:00:14 UTC; ranks 1 and "
            "3 wrote none.");
  EXPECT_EQ(first_line({record_of(1, "")}), "1 of 4 ranks wrote a flight record; ranks 0, 2 and 3 wrote none.");
  for (const std::string bad : {"", "today", "2026-11-22T03:00:12", "2026-11-22T03:00:12+01:00"}) {
    std::string text = flight_text(record_of(0, three));
    text.replace(text.find(three), three.size(), bad);
    EXPECT_THROW(parse_flight(text, "it"), UsageError) << bad;
  }
}

/// Returns the flight record of rank 1 in a world of three ranks, with two collectives.
std::string small_flight() {
  FlightRecorder recorder(1, 3, "0123", "");
  const int group = recorder.add_group({0, 1, 2});
  for (const uint64_t sequence : {1, 2})
    recorder.issue(group, Lane::kReduce, sequence, describe_barrier({"h.1"}), {"h.1"});
  return flight_text(recorder.record("rank 2 failed"));
}

TEST(FlightFile, RejectsInconsistentRecords) {
  const std::string text = small_flight();
  EXPECT_EQ(refusal_of(text), "accepted");
  const auto refused = [&text](std::string_view old, std::string_view other, std::string_view why) {
    expect_contains(refusal_of(with(text, old, other)), {why});
  };
  refused("ranks\t3", "ranks\t1", "expected a number from");
  refused("rank\t1\n", "rank\t1\nrank\t1\n", "the line 'rank' may appear only once");
  refused("rank\t1\n", "", "the line 'rank' must precede the line 'ranks'");
  refused("ranks\t3\n", "", "the line 'ranks' must precede each line 'group'");
  refused("0 1 2", "0 1 3", "expected a number from");
  refused("0 1 2", "0 1 1", "the group contains a rank twice");
  refused("0 1 2", "0 2", "the group does not contain the rank of this record");
  refused("collective\t2", "collective\t1", "the numbers of collectives must increase");
  refused("end\t2\n", "end\t3\n", "the line 'end' does not state the number of collectives and rendezvous, 2");
  refused("end\t2\n", "end\t2\nend\t2\n", "a line follows the line 'end'");
  refused("end\t2\n", "end\t2\n# more\n", "a line follows the line 'end'");
  refused("end\t2\n", "meeting\t2\t0\t1\tsave\t20\t1.5\n", "unknown kind of line");
  refused("end\t2\n", "meeting\t2\t1\t1\tsave\t20\t1.5\t-\n", "expected a number from");
  expect_contains(refusal_of(text.substr(0, text.find("rank\t"))), {"the line 'rank' is missing"});
}

std::string without_end(const std::string& text) { return text.substr(0, text.find("end\t")); }

/// A record may be truncated anywhere. Collectives that are missing after truncation must not be reported as
/// never issued.
TEST(FlightFile, ARecordWithoutItsEndLineIsIncomplete) {
  const std::string text = small_flight();
  EXPECT_TRUE(parse_flight(text, "it").complete);
  const std::size_t first = text.find("group\t");
  for (std::size_t at = first; at < text.size(); ++at) {
    const FlightRecord cut = parse_flight(text.substr(0, at), "it");
    EXPECT_FALSE(cut.complete) << at;
    EXPECT_LE(cut.entries.size(), 2u);
    EXPECT_EQ(cut.why, "rank 2 failed");
  }
  const FlightRecord half = parse_flight(text.substr(0, text.find("collective\t2") + 20), "it");
  EXPECT_EQ(half.entries.size(), 1u) << "a truncated line must be ignored";
}

TEST(FlightFile, Version1RecordsAreCompleteWithoutAnEndLine) {
  const std::string text = with(without_end(small_flight()), "flight record 2", "flight record 1");
  EXPECT_TRUE(parse_flight(text, "it").complete);
  EXPECT_EQ(parse_flight(text, "it").entries.size(), 2u);
  EXPECT_FALSE(parse_flight(text.substr(0, text.size() - 1), "it").complete);
  EXPECT_EQ(refusal_of(with(text, "flight record 1", "flight record 3")),
            "it is not a valid flight record: line 1: expected the title \"aliquot flight record 2\".");
}

/// While a thread that saves waits in a rendezvous, training may issue many collectives. The record must still contain
/// the rendezvous.
TEST(FlightFile, RendezvousAreKeptSeparatelyFromCollectives) {
  FlightRecorder recorder(1, 2, "0123", "");
  const int group = recorder.add_group({0, 1});
  recorder.issue(group, Lane::kReduce, 1, describe_barrier({"h.1"}), {"h.1"});
  recorder.end_rendezvous(recorder.begin_rendezvous(group, 1, {"set up"}));
  recorder.begin_rendezvous(group, 2, {"save", 20});
  for (uint64_t i = 2; i <= 1000; ++i) recorder.issue(group, Lane::kReduce, i, describe_barrier({"h.1"}), {"h.1"});
  const std::string text = flight_text(recorder.record("told to end"));
  const FlightRecord record = parse_flight(text, "it");
  EXPECT_EQ(flight_text(record), text);
  ASSERT_EQ(record.rendezvous.size(), 2u);
  EXPECT_EQ(record.rendezvous[0].unit, "set up");
  EXPECT_GE(record.rendezvous[0].ended, record.rendezvous[0].begun);
  EXPECT_EQ(record.rendezvous[1].unit, "save");
  EXPECT_EQ(record.rendezvous[1].step, 20);
  EXPECT_EQ(record.rendezvous[1].number, 1u) << "number of the last collective before the rendezvous";
  EXPECT_LT(record.rendezvous[1].ended, 0);
  for (uint64_t i = 3; i <= 1000; ++i) recorder.begin_rendezvous(group, i, {"save", 20});
  EXPECT_EQ(recorder.record("").rendezvous.size(), kMaxFlightRendezvous);
  EXPECT_EQ(recorder.record("").rendezvous.back().sequence, 1000u);
}

TEST(FlightFile, LeavesNoFileOnAFullDisk) {
  const test::TemporaryDirectory directory;
  FlightRecorder recorder(1, 2, "0123", directory.path().string());
  const auto leave_none = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &none);
    recorder.write("rank 1 failed");
    _exit(std::filesystem::is_empty(directory.path()) ? 0 : 1);
  };
  EXPECT_EXIT(leave_none(), testing::ExitedWithCode(0), "");
}

TEST(FlightFile, RejectsMoreEntriesThanARankKeeps) {
  std::string text = without_end(small_flight());
  const std::string last = text.substr(text.find("collective\t2\t"));
  for (int number = 3; number <= 256; ++number) text += with(last, "\t2\t", "\t" + std::to_string(number) + "\t");
  EXPECT_EQ(refusal_of(text), "accepted");
  expect_contains(refusal_of(text + with(last, "\t2\t", "\t257\t")), {"more than 256 collectives"});
  for (int i = 0; i < 64; ++i) text += "meeting\t2\t0\t1\tsave\t20\t1.5\t-\n";
  EXPECT_EQ(refusal_of(text), "accepted");
  expect_contains(refusal_of(text + "meeting\t2\t0\t1\tsave\t20\t1.5\t-\n"), {"more than 64 rendezvous"});
  std::string groups;
  for (int i = 0; i < (1 << 14); ++i) groups += "group\t1\n";
  expect_contains(refusal_of(with(small_flight(), "group", groups + "group")), {"more than 16384 groups"});
}

/// A group may be large and have many collectives, so all its collectives refer to one list of members.
TEST(FlightFile, MembersAreNotCopiedForEachCollective) {
  const std::vector<FlightRecord> records{parse_flight(small_flight(), "it")};
  const std::vector<CollectiveRecord> collectives = match_collectives(records);
  ASSERT_EQ(collectives.size(), 2u);
  for (const CollectiveRecord& collective : collectives) EXPECT_EQ(collective.members, &records[0].groups[0]);
}

TEST(FlightFile, ControlCharactersAreReplaced) {
  const std::string text = with(with(small_flight(), "rank 2 failed", "red\x1b[31m \x7f\xc2\x9b!"), "h.1", "h.\x1b");
  const FlightRecord record = parse_flight(text, "it");
  EXPECT_EQ(record.why, "red [31m    !");
  EXPECT_EQ(record.entries[0].unit, "h. ");
  EXPECT_EQ(explain({record}).find('\x1b'), std::string::npos);
  EXPECT_EQ(replace_control_characters("Größe \xc2\xa0€"), "Größe \xc2\xa0€");
}

TEST(FlightFile, RoundTripsAndRejectsDamagedRecords) {
  FlightRecorder recorder(1, 2, "0123", "");
  const int group = recorder.add_group({0, 1});
  for (int i = 1; i <= 300; ++i) {
    const OperationDescription what{.kind = OperationDescription::Kind::kReduceScatter, .fingerprint = 7, .count = i};
    const uint64_t number = recorder.issue(group, Lane::kReduce, static_cast<uint64_t>(i), what, {"h.1\tx\n", i});
    recorder.begin(number);
    if (i < 300) recorder.end(number);
  }
  recorder.set_failure_location("backward h.1");
  const FlightRecord record = recorder.record("a rank\nfailed");
  EXPECT_EQ(record.entries.size(), FlightRecorder::kDepth);
  EXPECT_EQ(record.entries.front().sequence, 45u);
  EXPECT_LT(record.entries.back().ended, 0);
  const std::string text = flight_text(record);
  const FlightRecord again = parse_flight(text, "it");
  EXPECT_EQ(flight_text(again), text);
  EXPECT_EQ(again.why, "a rank failed");
  EXPECT_EQ(again.entries.back().unit, "h.1 x ");
  // A record that is truncated anywhere, or has a changed byte, is either read or rejected with a UsageError.
  int refused = 0;
  for (std::size_t at = 0; at < std::min<std::size_t>(text.size(), 2000); ++at) {
    for (const std::string& bad : {text.substr(0, at), text.substr(0, at) + '\x01' + text.substr(at + 1),
                                   text.substr(0, at) + '9' + text.substr(at + 1)}) {
      try {
        explain({parse_flight(bad, "it")});
      } catch (const UsageError& error) {
        ++refused;
        EXPECT_TRUE(std::string_view(error.what()).starts_with("it is not a valid flight record")) << error.what();
      }
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace aliquot
