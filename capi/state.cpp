// Reading parameters; checkpoints.
#include <algorithm>
#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/status.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/weights/load_weights.h"

using aliquot::capi::given;
using aliquot::capi::guarded;

int aliquot_read(aliquot_engine* engine, const char* parameter, int64_t count, float* values) {
  return guarded([&] {
    const std::string_view name = &given(parameter, "the parameter's name");
    const std::vector<float> whole = given(engine, "the engine").engine.read(name);
    if (values == nullptr) throw aliquot::UsageError("there is no place for the values: values is NULL");
    if (count != static_cast<int64_t>(whole.size())) {
      throw aliquot::UsageError(
          fmt::format("the parameter {} has {} elements; room was given for {}", name, whole.size(), count));
    }
    std::ranges::copy(whole, values);
  });
}

int aliquot_check_copies(aliquot_engine* engine) {
  return guarded([&] { given(engine, "the engine").engine.check_copies(); });
}

int aliquot_save(aliquot_engine* engine, const char* directory, int keep) {
  return guarded([&] {
    aliquot::Engine& of = given(engine, "the engine").engine;
    aliquot::save(of.state(), of.world().communicator(), &given(directory, "the directory"), {.keep_count = keep});
  });
}

int aliquot_load(aliquot_engine* engine, const char* path) {
  return guarded([&] {
    aliquot::Engine& of = given(engine, "the engine").engine;
    aliquot::State state = of.state();
    aliquot::load(state, of.world().communicator(), &given(path, "the path"));
    of.adopt(state);
  });
}

int aliquot_load_newest(aliquot_engine* engine, const char* directory, int* found) {
  return guarded([&] {
    aliquot::Engine& of = given(engine, "the engine").engine;
    aliquot::State state = of.state();
    const auto report = aliquot::load_newest(state, of.world().communicator(), &given(directory, "the directory"));
    if (report) of.adopt(state);
    if (found != nullptr) *found = report ? 1 : 0;
  });
}

int aliquot_load_weights(aliquot_engine* engine, const char* path) {
  return guarded([&] {
    aliquot::Engine& of = given(engine, "the engine").engine;
    const aliquot::State state = of.state();
    aliquot::load_weights(state, of.world().communicator(), &given(path, "the path"));
    of.adopt(state);
  });
}
