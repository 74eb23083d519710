#pragma once
// One suite over every communicator. A backend is a file of a few lines that says which worlds there are and how to run
// a body in one; the suite is linked to it.

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <vector>

#include "sharding/world.h"

namespace aliquot::conformance {

/// Defined by the backend: the world sizes it can run here.
std::vector<int> world_sizes();
/// Defined by the backend: runs `body` on every rank of a world of that size, or fails the test.
void run_world(int rank_count, const std::function<void(World&)>& body);
/// Defined by the backend: whether sums must come in the aligned tree's order, to the bit.
bool sums_are_exact();

struct Case {
  int rank_count;
  int64_t count;  // elements of one part
};
void PrintTo(const Case& test_case, std::ostream* out);

/// One world and one count. Bodies run on all ranks; streams and buffers belong to the body.
class EveryWorld : public testing::TestWithParam<Case> {
 protected:
  void run(const std::function<void(World&)>& body) { run_world(GetParam().rank_count, body); }
  int64_t count() const { return GetParam().count; }
  /// For groups, of which a world makes several: large is not that large.
  int64_t group_count() const { return std::min<int64_t>(count(), 5003); }
};

/// One world, for what has no count.
class EveryWorldOnce : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(World&)>& body) { run_world(GetParam(), body); }
};

/// A number that tells rank, part and place apart, and whose sums depend on their order.
float value(int rank, int part, int64_t element);

/// Runs `body` in groups of the world's ranks: of neighbours, and of every other one, counted backwards.
void for_each_test_group(World& world, const std::function<void(Communicator&)>& body);

/// Copies between host memory and the world's device; on a host, plain copies.
void write(World& world, std::byte* to, const std::vector<std::byte>& from);
std::vector<std::byte> read(World& world, const std::byte* from, int64_t size_bytes);

}  // namespace aliquot::conformance
