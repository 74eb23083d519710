// Tests the mesh, the names of groups and the model code in flight records.
#include <array>
#include <gtest/gtest.h>

#include "apps/explain/explain.h"
#include "sharding/flight/flight_recorder.h"
#include "tests/apps/explain/flight_text.h"
#include "tests/support/failing_world.h"

namespace aliquot {
namespace {

using test::refusal_of;
using test::with;

/// Returns the flight record of rank 5 on a mesh of 2 pipeline stages, 2 replicas and 2 shards.
std::string flight_on_a_mesh() {
  FlightRecorder recorder(5, 8, "0123", "");
  recorder.set_mesh({.counts = {2, 2, 2, 1}, .coordinates = {1, 0, 1, 0}});
  recorder.add_group({0, 1, 2, 3, 4, 5, 6, 7}, "world");
  const int pair = recorder.add_group({1, 5}, "pair of pipeline stages 0 and 1 of replica 0, shard 1");
  recorder.add_group({5});
  const Label label{"pipeline stage 0 to 1, m2, h.1", 3};
  recorder.issue(pair, Lane::kForward0, 1, describe_barrier(label), label);
  recorder.begin_model_code("forward", {"h.1", 3}, 2);
  recorder.end_model_code();
  recorder.begin_model_code("backward", {"h.1", 3}, 0);
  return flight_text(recorder.record("rank 5 failed"));
}

TEST(FlightMesh, NamesTheMeshTheGroupsAndModelCode) {
  const std::string text = flight_on_a_mesh();
  expect_contains(text, {"mesh\tpipeline=2 replica=2 shard=2 tensor=1\ncoordinates\tpipeline=1 replica=0 shard=1 "
                         "tensor=0\n",
                         "group\t1 5\ngroup-name\tpair of pipeline stages 0 and 1 of replica 0, shard 1\ngroup\t5\n",
                         "\tpipeline stage 0 to 1, m2, h.1\t3\t", "model\tbackward h.1\t0\t3\t"});
  const FlightRecord record = parse_flight(text, "it");
  EXPECT_EQ(flight_text(record), text);
  ASSERT_TRUE(record.mesh.has_value());
  EXPECT_EQ(record.mesh->counts, (std::array{2, 2, 2, 1}));
  EXPECT_EQ(record.mesh->coordinates, (std::array{1, 0, 1, 0}));
  EXPECT_EQ(record.group_names,
            (std::vector<std::string>{"world", "pair of pipeline stages 0 and 1 of replica 0, shard 1", ""}));
  ASSERT_EQ(record.model_code.size(), 2u);
  EXPECT_GE(record.model_code[0].ended, record.model_code[0].begun);
  EXPECT_EQ(record.model_code[1].what, "backward h.1");
  EXPECT_LT(record.model_code[1].ended, 0);
}

TEST(FlightMesh, RejectsAMeshOrNamesThatDoNotFit) {
  const std::string text = flight_on_a_mesh();
  EXPECT_EQ(refusal_of(text), "accepted");
  const auto refused = [&text](std::string_view old, std::string_view other, std::string_view why) {
    expect_contains(refusal_of(with(text, old, other)), {why});
  };
  refused("pipeline=2", "pipeline=3", "the mesh must have 8 ranks");
  refused("pipeline=2", "pipeline=0", "expected a number from 1");
  refused("pipeline=2 ", "", "expected the four dimensions of a mesh");
  refused("pipeline=2", "stage=2", "expected 'pipeline=' followed by a number");
  refused("pipeline=1", "pipeline=0", "the coordinates are not those of the rank");
  refused("mesh\tpipeline=2 replica=2 shard=2 tensor=1\n", "", "the line 'mesh' must precede the line 'coordinates'");
  refused("group\t5\n", "group-name\tother\ngroup\t5\n", "the line 'group-name' must follow a line 'group'");
  refused("\tbackward h.1\t0", "\tbackward h.1\t-1", "expected a number from 0");
  std::string more;
  for (int i = 0; i < 15; ++i) more += "model\tforward h.1\t0\t3\t1.5\t-\n";
  refused("end\t", more + "end\t", "more than 16 executions of model code");
}

/// A record may be truncated between its `mesh` line and its `coordinates` line.
TEST(FlightMesh, TruncatedMeshIsIgnored) {
  const std::string text = flight_on_a_mesh();
  const FlightRecord record = parse_flight(text.substr(0, text.find("coordinates")), "it");
  EXPECT_FALSE(record.complete);
  EXPECT_FALSE(record.mesh.has_value());
  EXPECT_EQ(flight_text(parse_flight(flight_text(record), "it")), flight_text(record));
}

/// A rank may run model code many times between two collectives. The record keeps only the last executions of model
/// code.
TEST(FlightMesh, KeepsTheLastModelCode) {
  FlightRecorder recorder(0, 1, "0123", "");
  for (int i = 0; i < 100; ++i) {
    recorder.begin_model_code("forward", {"a unit whose name is longer than the text that a record keeps", i}, i);
    recorder.end_model_code();
  }
  const FlightRecord record = parse_flight(flight_text(recorder.record("")), "it");
  ASSERT_EQ(record.model_code.size(), kMaxFlightModelCode);
  EXPECT_EQ(record.model_code.front().micro_batch, 84);
  EXPECT_EQ(record.model_code.back().micro_batch, 99);
  EXPECT_EQ(record.model_code.back().what, "forward a unit whose name is longer than");
}

/// Records of earlier versions have neither a mesh nor names of groups nor model code.
TEST(FlightMesh, ReadsRecordsOfEarlierVersions) {
  const FlightRecord record = parse_flight(
      "aliquot flight record 2\nrun\t0123\nrank\t1\nranks\t2\nwhy\trank 0 failed\nplace\tbackward h.1\n"
      "written\t12.500000\nutc\t2026-11-22T03:00:12Z\ngroup\t0 1\n"
      "#\tnumber\tgroup\tlane\tsequence\toperation\tpacked\tunit\tstep\tissued\tbegun\tended\n"
      "collective\t7\t0\treduce\t7\tbarrier\t6000000000000000\th.1\t3\t11.000000\t11.500000\t-\n"
      "#\tafter\tgroup\tsequence\tpurpose\tstep\tbegun\tended\n"
      "meeting\t6\t0\t1\tsave\t2\t10.000000\t10.500000\nend\t2\n",
      "it");
  EXPECT_TRUE(record.complete);
  EXPECT_FALSE(record.mesh.has_value());
  ASSERT_EQ(record.entries.size(), 1u);
  EXPECT_EQ(record.entries[0].unit, "h.1");
  EXPECT_EQ(record.rendezvous.size(), 1u);
  EXPECT_TRUE(record.model_code.empty());
  expect_contains(explain({record}), {"rank 1: rank 0 failed\n"});
}

}  // namespace
}  // namespace aliquot
