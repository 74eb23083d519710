#include <fmt/format.h>
#include <new>

#include "capi/handles.h"
#include "capi/options.h"
#include "capi/status.h"

using aliquot::World;
using aliquot::WorldOptions;
using aliquot::capi::catch_as_status;
using aliquot::capi::require_not_null;

namespace {

WorldOptions world_options(const aliquot_options* options) {
  return options == nullptr ? WorldOptions{} : options->options.world;
}

aliquot_world* make_handle(World made) {
  auto owned = std::make_unique<World>(std::move(made));
  World* const world = owned.get();
  return new aliquot_world{world, std::move(owned)};
}

/// Wraps the user's C function. A status other than ALIQUOT_DONE becomes an exception, and the other ranks stop.
auto make_rank_body(aliquot_body body, void* context) {
  return [body = &require_not_null(body, "body"), context](World& world) {
    aliquot_world handle{&world, nullptr};
    aliquot::capi::check_callback_status(body(&handle, context), fmt::format("the body of rank {}", world.rank()));
  };
}

}  // namespace

int aliquot_world_from_environment(const aliquot_options* options, aliquot_world** world) {
  return catch_as_status(
      [&] { require_not_null(world, "world") = make_handle(World::from_environment(world_options(options))); });
}

int aliquot_world_from_mpi_f(int communicator, const aliquot_options* options, aliquot_world** world) {
  return catch_as_status([&] {
    require_not_null(world, "world") = make_handle(World::from_mpi_handle(communicator, world_options(options)));
  });
}

int aliquot_world_threads(int rank_count, aliquot_body body, void* context, const aliquot_options* options) {
  return catch_as_status([&] { World::threads(rank_count, make_rank_body(body, context), world_options(options)); });
}

int aliquot_world_run(int rank_count, aliquot_body body, void* context, const aliquot_options* options) {
  return catch_as_status([&] { World::run(rank_count, make_rank_body(body, context), world_options(options)); });
}

void aliquot_world_free(aliquot_world* world) {
  if (world != nullptr && world->owned) delete world;
}

int aliquot_rank(const aliquot_world* world) { return world->world->rank(); }
int aliquot_rank_count(const aliquot_world* world) { return world->world->rank_count(); }

int aliquot_sum(aliquot_world* world, double* values, int count) {
  return catch_as_status([&] {
    if (count < 0) throw aliquot::UsageError(fmt::format("count is {}: expected 0 or more", count));
    if (count > 0) require_not_null(values, "values");
    require_not_null(world, "world").world->sum({values, static_cast<std::size_t>(count)});
  });
}
