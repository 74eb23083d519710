// The proof that the plans of all pipeline stages are of the same model, and that they divide it.
#include <fmt/format.h>
#include <utility>

#include "engine/proof/validate_parts.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

/// Whether groups with these two topologies can have the same plan.
bool alike(const Topology& a, const Topology& b) {
  return a.node_of_rank == b.node_of_rank && a.has_gpus() == b.has_gpus() && a.shares_one_gpu() == b.shares_one_gpu();
}

class CutChecker {
 public:
  CutChecker(const std::vector<Plan>& stages, StageDefects& defects)
      : stages_(stages), first_(stages.front()), defects_(defects) {}

  /// Runs all checks. Each check requires that the earlier ones find no defect.
  void check() {
    const auto steps = {&CutChecker::check_all_numbers, &CutChecker::check_first,      &CutChecker::check_all_models,
                        &CutChecker::check_order,       &CutChecker::check_all_meshes, &CutChecker::check_run_counts,
                        &CutChecker::check_runs,        &CutChecker::check_units};
    for (const auto step : steps) {
      (this->*step)();
      if (!defects_.empty()) return;
    }
  }

 private:
  int32_t count() const { return static_cast<int32_t>(stages_.size()); }
  const Plan& plan(int32_t s) const { return stages_[static_cast<std::size_t>(s)]; }

  void check_all_numbers() {
    for (int32_t s = 0; s < count(); ++s) check_numbers(s);
  }
  void check_all_models() {
    for (int32_t s = 1; s < count(); ++s) check_model(s);
  }
  void check_all_meshes() {
    for (int32_t s = 0; s < count(); ++s) check_mesh(s);
  }
  /// Checks the first plan. Later checks compare the other plans with it.
  void check_first() {
    if (const auto found = invalid_tables(first_)) add("in the plan of pipeline stage 0, {}", *found);
  }
  void check_order() {
    if (const auto found = invalid_order(first_)) add("no pipeline stage can run its passes: {}", *found);
  }

  void check_numbers(int32_t s) {
    const Plan& own = plan(s);
    expect(s, "index of the pipeline stage", own.stage.index, s);
    expect(s, "number of pipeline stages", own.stage.count, count());
    expect(s, "number of pipeline stages in the mesh", own.policy.pipeline, count());
    if (own.stage.tied_ends != first_.stage.tied_ends)
      add("in the plan of pipeline stage {}, the first and last uses of the model are {}tied: expected them {}, as on "
          "pipeline stage 0",
          s, own.stage.tied_ends ? "" : "not ", first_.stage.tied_ends ? "tied" : "not tied");
    expect(s, "number of units", own.model.units.size(), first_.model.units.size());
    expect(s, "number of entries of Plan::unit_is_here", own.unit_is_here.size(), first_.model.units.size());
    expect(s, "number of uses", own.model.uses.size(), first_.model.uses.size());
    expect(s, "number of flat buffers", own.flats.size(), first_.flats.size());
    expect(s, "number of replicas", own.policy.replica_count, first_.policy.replica_count);
    expect(s, "number of ranks in a tensor group", own.policy.tensor, first_.policy.tensor);
    expect(s, "number of ranks in a shard group", own.topology.rank_count(), first_.topology.rank_count());
    expect(s, "number of ranks in the mesh", own.mesh().rank_count(), first_.world.rank_count());
    expect(s, "number of micro-batches in the options", own.policy.micro_batch_count, first_.policy.micro_batch_count);
    expect(s, "number of micro-batches", own.schedule.micro_batch_count, first_.policy.micro_batch_count);
    expect(s, "ZeRO stage", own.schedule.zero_stage, first_.policy.zero_stage);
    expect(s, "size of the staging memory that is used between steps, in bytes,", own.schedule.stream_bytes,
           first_.schedule.stream_bytes);
  }

  void check_model(int32_t s) {
    const ModelSpec &own = plan(s).model, &first = first_.model;
    for (std::size_t unit = 0; unit < first.units.size(); ++unit) {
      if (own.units[unit] != first.units[unit])
        differs(s, fmt::format("unit {} (unit {} of the model)", own.units[unit].name, unit));
    }
    for (std::size_t use = 0; use < first.uses.size(); ++use) {
      if (own.uses[use] != first.uses[use])
        add("{} of the plan of pipeline stage {} has other units: expected {}, as on pipeline stage 0",
            describe_use(own, static_cast<int32_t>(use)), s, describe_use(first, static_cast<int32_t>(use)));
    }
    for (std::size_t flat = 0; flat < first_.flats.size(); ++flat) {
      if (plan(s).flats[flat] != first_.flats[flat])
        differs(s, fmt::format("flat buffer {} of unit {}", flat, first.units[first_.flats[flat].unit].name));
    }
    if (plan(s).flats_of_unit != first_.flats_of_unit) differs(s, "the list of flat buffers of units");
    if (own.activations != first.activations) differs(s, "the declaration of activations");
    if (plan(s).policy != first_.policy) differs(s, "the policy");
    if (plan(s).schedule.accumulate_into_shard != first_.schedule.accumulate_into_shard)
      differs(s, "Schedule::accumulate_into_shard");
  }

  /// Checks that Plan::world, the topology of all ranks, is the same as in the first plan. Also checks that the ranks
  /// of the pipeline stage are those that the mesh assigns to it.
  void check_mesh(int32_t s) {
    const Plan& own = plan(s);
    if (own.world != first_.world) return differs(s, "the topology of the world");
    const Mesh mesh = own.mesh();
    // The ranks of the stage with each tensor coordinate, and the ranks of each of their replicas, ascending.
    std::vector<std::vector<int>> with_coordinate(static_cast<std::size_t>(mesh.tensor));
    std::vector<std::vector<int>> replicas(static_cast<std::size_t>(mesh.tensor * mesh.replica));
    for (const int rank : mesh.members(GroupId::kStage, mesh.rank({.pipeline = s}))) {
      const MeshCoordinates at = mesh.coordinates(rank);
      with_coordinate[static_cast<std::size_t>(at.tensor)].push_back(rank);
      replicas[static_cast<std::size_t>(at.tensor * mesh.replica + at.replica)].push_back(rank);
    }
    if (own.data_topology != topology_of_group(own.world, with_coordinate.front()))
      return add(
          "in the plan of pipeline stage {}, the topology of the ranks with tensor coordinate 0 is {}: expected that "
          "of "
          "{} ranks from rank {} to rank {}",
          s, own.data_topology.describe(), with_coordinate.front().size(), with_coordinate.front().front(),
          with_coordinate.front().back());
    if (own.topology != topology_of_group(own.world, replicas.front()))
      return add(
          "in the plan of pipeline stage {}, the topology of a replica is {}: expected that of the first {} ranks of "
          "the pipeline stage",
          s, own.topology.describe(), mesh.shard);
    for (std::size_t t = 1; t < with_coordinate.size(); ++t) {
      const Topology other = topology_of_group(own.world, with_coordinate[t]);
      if (!alike(other, own.data_topology))
        add("the ranks of pipeline stage {} with tensor coordinate {} ({}) and those with coordinate 0 ({}) are "
            "distributed differently over nodes or GPUs: expected no difference, because they have one plan",
            s, t, other.describe(), own.data_topology.describe());
    }
    for (std::size_t r = 1; r < replicas.size(); ++r) {
      const Topology replica = topology_of_group(own.world, replicas[r]);
      if (!alike(replica, own.topology))
        add("replica {} of pipeline stage {} ({}) and replica 0 ({}) are distributed differently over nodes or GPUs: "
            "expected no difference, because all replicas have one plan",
            r, s, replica.describe(), own.topology.describe());
    }
  }

  /// Checks the numbers of virtual stages. With tied ends, the last pipeline stage has one more virtual stage.
  void check_run_counts() {
    const int32_t own = first_.policy.virtual_stages;
    for (int32_t s = 0; s < count(); ++s) {
      expect(s, "number of virtual stages", plan(s).stage.runs.size(), s + 1 == count() ? own + tied() : own);
      expect(s, "number of virtual stages of the pipeline", plan(s).stage.run_count, count() * own + tied());
    }
  }
  int32_t tied() const { return first_.stage.tied_ends ? 1 : 0; }

  /// Checks the virtual stages in order. They are assigned to the pipeline stages in turn, beginning with pipeline
  /// stage 0. With tied ends, virtual stage 0 on the last pipeline stage comes before them.
  void check_runs() {
    int32_t use = 0, index = 0;
    if (tied() == 1) use = check_run(count() - 1, plan(count() - 1).stage.runs.front(), index++, use);
    for (int32_t round = 0; round < first_.policy.virtual_stages; ++round) {
      for (int32_t s = 0; s < count(); ++s) {
        const int32_t earlier = round + (s + 1 == count() ? tied() : 0);
        use = check_run(s, plan(s).stage.runs[static_cast<std::size_t>(earlier)], index++, use);
      }
    }
    const auto uses = static_cast<int32_t>(first_.model.uses.size());
    if (use != uses)
      add("the last virtual stage ends with {} on pipeline stage {}: expected {}", describe_use(first_.model, use - 1),
          count() - 1, describe_use(first_.model, uses - 1));
  }

  /// Checks one virtual stage. Returns the use with which the next virtual stage must begin.
  int32_t check_run(int32_t s, const VirtualStage& run, int32_t index, int32_t first_use) {
    expect(s, "virtual stage", run.index, index);
    if (run.first_use != first_use)
      add("virtual stage {} on pipeline stage {} begins with {}: expected {}", index, s,
          describe_use(first_.model, run.first_use), describe_use(first_.model, first_use));
    if (run.end_use <= run.first_use)
      add("virtual stage {} on pipeline stage {} has no use: expected at least {}", index, s,
          describe_use(first_.model, first_use));
    return run.end_use;
  }

  /// Checks that all uses of a unit are on one pipeline stage, and that Plan::unit_is_here is true only there.
  void check_units() {
    std::vector<int32_t> home(first_.model.units.size(), -1);
    for (int32_t s = 0; s < count(); ++s) {
      for (const VirtualStage& run : plan(s).stage.runs) {
        for (int32_t use = run.first_use; use < run.end_use; ++use) place_units(s, use, home);
      }
    }
    for (int32_t s = 0; s < count(); ++s) {
      for (std::size_t unit = 0; unit < home.size(); ++unit) {
        const bool here = plan(s).unit_is_here[unit];
        if (here == (home[unit] == s)) continue;
        add("unit {} is {}on pipeline stage {}: expected it on pipeline stage {} alone, which runs its uses",
            first_.model.units[unit].name, here ? "" : "not ", s, home[unit]);
      }
    }
  }
  void place_units(int32_t s, int32_t use, std::vector<int32_t>& home) {
    for (const UnitId unit : first_.model.uses[use]) {
      if (home[unit] < 0) home[unit] = s;
      if (home[unit] != s)
        add("{} is on pipeline stage {}, but uses unit {} of pipeline stage {}: expected all uses of a unit on one "
            "pipeline stage",
            describe_use(first_.model, use), s, first_.model.units[unit].name, home[unit]);
    }
  }

  template <typename Found, typename Expected>
  void expect(int32_t s, std::string_view what, Found found, Expected expected) {
    if (std::cmp_equal(found, expected)) return;
    add("in the plan of pipeline stage {}, the {} is {}: expected {}", s, what, found, expected);
  }
  void differs(int32_t s, std::string_view what) {
    add("{} differs between the plans of pipeline stages {} and 0: expected the same", what, s);
  }
  template <typename... Values>
  void add(fmt::format_string<Values...> form, Values&&... values) {
    defects_.add(DefectKind::kCut, {}, fmt::format(form, std::forward<Values>(values)...));
  }

  const std::vector<Plan>& stages_;
  const Plan& first_;
  StageDefects& defects_;
};

}  // namespace

void check_cut(const std::vector<Plan>& stages, StageDefects& defects) {
  if (stages.empty())
    return defects.add(DefectKind::kCut, {}, "the list of plans is empty: expected one plan for each pipeline stage");
  CutChecker(stages, defects).check();
}

}  // namespace aliquot
