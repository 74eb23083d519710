#pragma once
// The test suite that every communicator must pass. Each backend is a small file that defines world sizes and how to
// run a function in a world. The test program of a backend links this suite.

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <vector>

#include "sharding/world.h"

namespace aliquot::conformance {

/// Defined by the backend: returns the world sizes to test.
std::vector<int> world_sizes();
/// Defined by the backend: runs `body` on every rank of a world of `rank_count` ranks, or fails or skips the test.
void run_world(int rank_count, const std::function<void(World&)>& body);
/// Defined by the backend: returns whether default sums have exactly the bits of sums in the order of the aligned tree.
bool sums_are_exact();

struct Case {
  int rank_count;
  int64_t count;  // number of elements of one part
};
void PrintTo(const Case& test_case, std::ostream* out);

/// Tests with one world size and one element count. Test bodies run on all ranks and own their streams and buffers.
class EveryWorld : public testing::TestWithParam<Case> {
 protected:
  void run(const std::function<void(World&)>& body) { run_world(GetParam().rank_count, body); }
  int64_t count() const { return GetParam().count; }
  /// Returns count(), but at most 5003, for tests that repeat their collectives in several groups.
  int64_t group_count() const { return std::min<int64_t>(count(), 5003); }
};

/// Tests with one world size and no element count.
class EveryWorldOnce : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(World&)>& body) { run_world(GetParam(), body); }
};

/// Returns a number that depends on rank, part and element. Sums of such numbers depend on the order of addition.
float value(int rank, int part, int64_t element);

/// Runs `body` in two kinds of groups: two adjacent ranks, and every other rank in descending order.
void for_each_test_group(World& world, const std::function<void(Communicator&)>& body);

/// These two functions copy between host memory and the rank's device, and wait for the copy.
void write(World& world, std::byte* to, const std::vector<std::byte>& from);
std::vector<std::byte> read(World& world, const std::byte* from, int64_t size_bytes);

}  // namespace aliquot::conformance
