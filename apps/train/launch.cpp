#include "apps/train/launch.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <unistd.h>

#include "apps/console.h"
#include "apps/error_notice.h"
#include "apps/train/mesh_choice.h"
#include "apps/train/stop_request.h"
#include "apps/train/train_settings.h"
#include "kernels/device/device.h"
#include "sharding/flight/flight_recorder.h"

namespace aliquot {
namespace {

/// Called if a rank's thread does not return after another rank failed, for example because it waits for a disk. Ends
/// the process, because a single thread cannot be ended safely. `first` is the error of the failed rank.
[[noreturn]] void exit_with_stuck_threads(std::exception_ptr first, const std::string& who) {
  write_flight_records(who + " did not return after another rank failed");
  auto code = ExitCode::kFault;
  try {
    std::rethrow_exception(first);
  } catch (const Error& error) {
    code = error.exit_code();
    warn("{}", error.what());
  } catch (const std::exception& error) {
    warn("{}", error.what());
  } catch (...) {
    warn("a rank threw an exception of an unknown type.");
  }
  warn("{} did not return after another rank failed: ending the process.", who);
  std::fflush(stdout);
  _exit(static_cast<int>(code));
}

void refuse_other_rank_count(const TrainOptions& options, int rank_count) {
  if (!options.ranks || *options.ranks == rank_count) return;
  if (options.mesh.given && rank_count > 1) {
    throw UsageError(fmt::format("--mesh {} has {} ranks, but the launcher started {} ranks: change one of them.",
                                 mesh_text(*options.mesh.given), *options.ranks, rank_count));
  }
  if (rank_count == 1) {
    throw UsageError(fmt::format(
        "--ranks {0} was given, but this program is the only process of --world mpi: start it with mpirun -n {0}, or "
        "use --world threads.",
        *options.ranks));
  }
  throw UsageError(fmt::format("--ranks {} was given, but the launcher started {} ranks: leave --ranks out.",
                               *options.ranks, rank_count));
}

}  // namespace

int default_rank_count(const TrainOptions& options) {
  const int gpus = options.world.device == DeviceChoice::kHost ? 0 : cuda_device_count();
  return static_cast<int>(options.ranks.value_or(std::max(1, gpus)));
}

ExitCode run_on_ranks(const TrainOptions& options, const std::function<ExitCode(World&, const TrainOptions&)>& body) {
  ExitCode code = ExitCode::kDone;
  WorldOptions launch_options = world_options(options);
  launch_options.on_stuck = exit_with_stuck_threads;
  limit_wait_at_exit(launch_options.timeout_seconds);
  note_checks_passed();
  World::run(
      default_rank_count(options),
      [&](World& world) {
        TrainOptions resolved = options;
        refuse_other_rank_count(resolved, world.rank_count());
        choose_mesh(world, resolved);
        resolve(resolved, world.rank_count(), world.device().kind() == DeviceKind::kCuda);
        check_same_options(world, resolved);
        const ExitCode own = body(world, resolved);
        if (world.rank() == 0 || launched_process_count() > 1) code = own;
      },
      launch_options);
  return code;
}

}  // namespace aliquot
