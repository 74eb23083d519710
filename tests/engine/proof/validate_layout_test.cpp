// Damages the flat buffers and the topologies of the plans of pipeline stages. The validator must report each defect.
// prove() must report the defect before it validates any schedule.
#include <numeric>

#include "sharding/groups.h"
#include "tests/engine/proof/stage_mutations.h"

namespace aliquot {
namespace {

using namespace testing;

/// Returns the layout of the tensors of `layout` after `change` has modified them.
FlatLayout relaid(const FlatLayout& layout, const std::function<void(std::vector<TensorSpec>&)>& change) {
  std::vector<TensorSpec> tensors = layout.tensors();
  change(tensors);
  return FlatLayout(std::move(tensors), layout.rank_count());
}

/// Mutations of a flat buffer. The first three do not change the size of the layout.
std::map<std::string, Mutate> mutations_of_flats() {
  std::map<std::string, Mutate> all;
  const auto add = [&all](const std::string& kind, std::function<bool(FlatSpec&)> change) {
    all[kind] = changed("flat buffer 0 of unit u0" + differs, [change = std::move(change)](Plan& plan) {
      return !plan.flats.empty() && plan.flats.front().unit == 0 && change(plan.flats.front());
    });
  };
  const auto always = [](auto change) { return [change](FlatSpec& flat) { return change(flat), true; }; };
  add("another name of a tensor", always([](FlatSpec& flat) {
        flat.layout = relaid(flat.layout, [](auto& tensors) { tensors.front().name += "x"; });
      }));
  add("another order of tensors", [](FlatSpec& flat) {
    if (flat.layout.tensors().size() < 2) return false;
    flat.layout = relaid(flat.layout, [](auto& tensors) { std::swap(tensors.front(), tensors.back()); });
    return true;
  });
  add("another offset of a tensor", [](FlatSpec& flat) {
    const FlatLayout& old = flat.layout;
    const FlatLayout shifted(old.tensors(), old.rank_count(), 1, kRedZoneBlocks);
    if (shifted.shard_count() != old.shard_count()) return false;
    flat.layout = shifted;
    return true;
  });
  add("one more rank of a layout",
      always([](FlatSpec& flat) { flat.layout = FlatLayout(flat.layout.tensors(), flat.layout.rank_count() + 1); }));
  add("a longer shard", [](FlatSpec& flat) {
    const FlatLayout longer(flat.layout.tensors(), flat.layout.rank_count(), 64);
    if (longer.shard_count() == flat.layout.shard_count()) return false;  // would change nothing
    flat.layout = longer;
    return true;
  });
  add("another unit of a flat buffer", always([](FlatSpec& flat) { flat.unit = 1; }));
  add("another parameter of a flat buffer", always([](FlatSpec& flat) { ++flat.parameters.front(); }));
  add("another trainability", always([](FlatSpec& flat) { flat.trainable = !flat.trainable; }));
  add("another kind of updates", always([](FlatSpec& flat) { flat.matrices = !flat.matrices; }));
  all["one flat buffer fewer"] =
      changed("in the plan of pipeline stage {}, the number of flat buffers",
              [](Plan& plan) { return !plan.flats.empty() && (plan.flats.pop_back(), true); });
  all["another list of flat buffers"] = changed("the list of flat buffers of units" + differs, [](Plan& plan) {
    return plan.flats_of_unit.front().push_back(0), true;
  });
  return all;
}

/// Adds a rank to Plan::world, the topology of all ranks, in each plan.
std::optional<std::string> enlarge_world(Stages& stages, std::size_t s) {
  for (Plan& stage : stages) {
    stage.world.node_of_rank.push_back(stage.world.node_of_rank.back());
    stage.world.gpu_of_rank.push_back(-1);
    stage.world.numa_of_rank.push_back(-1);
  }
  const int ranks = stages[s].world.rank_count();
  return fmt::format("in the plan of pipeline stage {}, the number of ranks in the mesh is {}: expected {}", s,
                     ranks - 1, ranks);
}

TEST(ValidateLayout, ReportsAWorldOfAnotherSize) { expect_reports({{"a larger world", enlarge_world}}, true); }
TEST(ValidateLayout, ReportsEveryDefectOfAFlatBuffer) { expect_reports(mutations_of_flats(), true); }

/// Plans for 2 pipeline stages with 3 replicas of 2 ranks each.
Stages plan_with_replicas(const Topology& world) {
  return plan_pipeline(chain_with_activations(4),
                       {.zero_stage = 2, .replica_count = 3, .pipeline = 2, .pipeline_cut = {2, 2}}, world);
}

/// All plans agree on where the ranks run. One replica does not run on the same nodes as the first replica.
TEST(ValidateLayout, ReportsAReplicaThatIsNotPlacedLikeTheFirst) {
  const std::vector<std::function<void(Topology&, int)>> changes = {
      [](Topology& world, int rank) { world.node_of_rank[rank] += 4; },
      [](Topology& world, int rank) { world.gpu_of_rank[rank] = 0; }};
  for (const auto& change : changes) {
    for (const int rank : {2, 3, 5, 9, 11}) {
      Topology world = hosts(12, 2);
      world.node_of_rank = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
      Stages stages = plan_with_replicas(world);
      change(world, rank);
      const int s = rank / 6;
      std::vector<int> members(6);
      std::iota(members.begin(), members.end(), 6 * s);
      for (Plan& stage : stages) stage.world = world;
      stages[static_cast<std::size_t>(s)].data_topology = topology_of_group(world, members);
      const std::string expected = fmt::format("replica {} of pipeline stage {} ({})", rank % 6 / 2, s,
                                               topology_of_group(world, {rank / 2 * 2, rank / 2 * 2 + 1}).describe());
      const auto defects = validate_stages(stages);
      EXPECT_TRUE(reports(defects, expected)) << expected << ": " << sentences(defects);
      EXPECT_EQ(defects.size(), 1U);
    }
  }
}

/// Replicas run on different GPUs or nodes, so the indices of their GPUs or nodes differ. Such plans are valid.
TEST(ValidateLayout, AcceptsReplicasWithOtherGpus) {
  Topology world = hosts(12, 4);
  for (int rank = 0; rank < 12; ++rank) world.gpu_of_rank[rank] = rank % 4;
  EXPECT_EQ(sentences(validate_stages(plan_with_replicas(world))), "");
  EXPECT_EQ(proof_error(plan_with_replicas(world)), "");
}

}  // namespace
}  // namespace aliquot
