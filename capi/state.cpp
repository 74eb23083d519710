// Functions that read parameters, and that save and load checkpoints.
#include <algorithm>
#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/status.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/weights/load_weights.h"
#include "engine/engine_scalars.h"

using aliquot::capi::catch_as_status;
using aliquot::capi::require_not_null;

int aliquot_read(aliquot_engine* engine, const char* parameter, int64_t count, float* values) {
  return catch_as_status([&] {
    const std::string_view name = &require_not_null(parameter, "parameter");
    const std::vector<float> elements = require_not_null(engine, "engine").engine.read(name);
    float* const first = &require_not_null(values, "values");
    if (count != static_cast<int64_t>(elements.size())) {
      throw aliquot::UsageError(
          fmt::format("count is {}: expected {}, the number of elements of {}", count, elements.size(), name));
    }
    std::ranges::copy(elements, first);
  });
}

int aliquot_check_copies(aliquot_engine* engine) {
  return catch_as_status([&] { require_not_null(engine, "engine").engine.check_copies(); });
}

int aliquot_save(aliquot_engine* engine, const char* directory, int keep) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    aliquot::State state = handle.engine.state();
    state.scalars.insert(handle.scalars.begin(), handle.scalars.end());
    aliquot::save(state, handle.engine.world().communicator(), &require_not_null(directory, "directory"),
                  {.keep_count = keep});
  });
}

namespace {

/// Continues from a state that was loaded. The scalars that are not the engine's become those of the program.
void adopt(aliquot_engine& handle, aliquot::State loaded) {
  handle.engine.adopt(loaded);
  handle.scalars = std::move(loaded.scalars);
  std::erase_if(handle.scalars, [](const auto& scalar) { return aliquot::is_engine_scalar(scalar.first); });
}

}  // namespace

int aliquot_load(aliquot_engine* engine, const char* path) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    aliquot::State state = handle.engine.state();
    aliquot::load(state, handle.engine.world().communicator(), &require_not_null(path, "path"));
    adopt(handle, std::move(state));
  });
}

int aliquot_load_newest(aliquot_engine* engine, const char* directory, int* found) {
  return catch_as_status([&] {
    aliquot_engine& handle = require_not_null(engine, "engine");
    aliquot::State state = handle.engine.state();
    const auto report =
        aliquot::load_newest(state, handle.engine.world().communicator(), &require_not_null(directory, "directory"));
    if (report) adopt(handle, std::move(state));
    if (found != nullptr) *found = report ? 1 : 0;
  });
}

int aliquot_load_weights(aliquot_engine* engine, const char* path) {
  return catch_as_status([&] {
    aliquot::Engine& native_engine = require_not_null(engine, "engine").engine;
    const aliquot::State state = native_engine.state();
    aliquot::load_weights(state, native_engine.world().communicator(), &require_not_null(path, "path"));
    native_engine.adopt(state);
  });
}
