// A program whose first argument selects how its ranks fail. The second argument is the deadline of collectives in
// seconds. tests/support/expect_failure.sh runs it under mpirun and checks its exit code, its output and /dev/shm.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <map>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "sharding/comm/collective_purpose.h"
#include "sharding/launcher.h"
#include "sharding/world.h"
#include "tests/support/mpi_leaks.h"

namespace aliquot {
namespace {

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void barrier(World& world, Communicator& group, Lane lane, Label label) {
  const auto stream = world.device().make_stream(lane);
  group.barrier(*stream, label);
  stream->synchronize();
}

void barrier(World& world, Lane lane, Label label) { barrier(world, world.communicator(), lane, label); }

void never_arrives(World& world) {
  barrier(world, Lane::kReduce, {"h.3", 117});
  if (world.rank() == 1) sleep_seconds(60);
  barrier(world, Lane::kReduce, {"h.7", 118});
}

void misses_set_up(World& world) {
  if (world.rank() == 1) sleep_seconds(60);
  world.communicator().gather_objects("here");
}

void differ_in_purpose(World& world) {
  const ScopedCollectivePurpose purpose(world.rank() == 1 ? "save" : "load", 20);
  world.communicator().gather_objects("here");
}

void differ_in_call(World& world) {
  if (world.rank() == 1)
    world.communicator().split(0, 0);
  else
    world.communicator().allocate(4096, Category::kSlots, "whole");
}

void misses_a_group(World& world) {
  const auto group = world.communicator().split(world.rank() % 2, 0);
  if (world.rank() == 3) sleep_seconds(60);
  if (world.rank() == 1) barrier(world, *group, Lane::kReduce, {"h.7", 118});
  sleep_seconds(60);
}

// Rank 3 never arrives. The other ranks arrive one after another, so ranks 0 and 2 also wait for rank 1, which is late.
void never_arrives_others_late(World& world) {
  barrier(world, Lane::kReduce, {"h.3", 117});
  constexpr std::array kSeconds = {0.0, 1.2, 0.3, 60.0};
  sleep_seconds(kSeconds.at(static_cast<std::size_t>(world.rank())));
  barrier(world, Lane::kReduce, {"h.7", 118});
}

void misses_set_up_first_is_late(World& world) {
  if (world.rank() == 3) sleep_seconds(60);
  if (world.rank() == 0) sleep_seconds(0.8);
  world.communicator().gather_objects("here");
}

void aborts_in_set_up(World& world) {
  world.communicator().gather_objects("made");
  if (world.rank() == 3) sleep_seconds(60);
  if (world.rank() == 0) {
    sleep_seconds(0.3);
    world.communicator().abort("rank 0 was told to stop");
    sleep_seconds(0.3);
    return;
  }
  world.communicator().allocate(4096, Category::kSlots, "whole");
}

void throws_beside_a_group(World& world) {
  const auto group = world.communicator().split(world.rank() / 2, 0);
  const auto wide = world.communicator().split(0, 0);
  world.communicator().gather_objects("made");
  if (world.rank() == 1) throw std::runtime_error("the disk is gone");
  barrier(world, world.rank() == 0 ? *group : *wide, Lane::kReduce, {"h.1", 3});
}

void differ_in_size(World& world) {
  world.communicator().allocate(world.rank() == 3 ? 64 << 20 : 4096, Category::kSlots, "the slot");
}

void throws(World& world) {
  if (world.rank() == 1) {
    sleep_seconds(0.1);
    throw std::runtime_error("the disk is gone");
  }
  barrier(world, Lane::kGather, {"h.1", 3});
}

void throws_wrong_use(World& world) {
  if (world.rank() == 1) throw UsageError("no model is named gpt9");
  try {
    barrier(world, Lane::kCompute, {});
  } catch (const CommunicationError& error) {
    fmt::print(stderr, "{}: exit code {}\n", error.what(), static_cast<int>(error.exit_code()));
    throw;
  }
}

void throws_while_others_compute(World& world) {
  if (world.rank() == 1) throw std::runtime_error("the disk is gone");
  sleep_seconds(60);
}

void throws_under_queued_work(World& world) {
  const auto stream = world.device().make_stream(Lane::kGather);
  const auto gathered = world.communicator().allocate(1 << 20, Category::kSlots, "whole");
  if (world.rank() == 1) world.communicator().all_gather_in_place(*stream, {&gathered, 0}, 1 << 16, {"never"});
  if (world.rank() == 1) throw std::runtime_error("thrown with queued work");
  barrier(world, Lane::kCompute, {});
}

void is_killed(World& world) {
  barrier(world, Lane::kReduce, {"h.1", 1});
  if (world.rank() == 1) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    fmt::print(stderr, "killed at {}\n", std::chrono::nanoseconds(now).count());
    raise(SIGKILL);
  }
  barrier(world, Lane::kReduce, {"h.1", 2});
}

void is_stopped(World& world) {
  barrier(world, Lane::kReduce, {"h.1", 1});
  if (world.rank() == 1) raise(SIGSTOP);
  barrier(world, Lane::kReduce, {"h.1", 2});
}

void differ_in_count(World& world) {
  auto& ranks = world.communicator();
  const auto gathered = ranks.allocate(4096 * ranks.rank_count(), Category::kSlots, "whole");
  const auto own = ranks.allocate(4096, Category::kSlots, "own");
  std::fill_n(own.local(), own.size_bytes(), std::byte{1});
  std::fill_n(gathered.local(), gathered.size_bytes(), std::byte{0});
  const auto stream = world.device().make_stream(Lane::kGather);
  try {
    ranks.all_gather(*stream, {&gathered, 0}, {&own, 0}, world.rank() == 1 ? 2048 : 4096, {"h.1", 5});
    stream->synchronize();
  } catch (const CommunicationError&) {
    const auto touched = std::count_if(gathered.local(), gathered.local() + gathered.size_bytes(),
                                       [](std::byte b) { return b != std::byte{0}; });
    if (touched != 0) fmt::print(stderr, "{} bytes were touched\n", touched);
    throw;
  }
}

void differ_in_operation(World& world) {
  const auto stream = world.device().make_stream(Lane::kReduce);
  double number = 1;
  if (world.rank() == 1) {
    world.communicator().all_reduce(*stream, {&number, 1}, Reduction::kSum, {"loss", 5});
  } else {
    world.communicator().barrier(*stream, {"h.1", 5});
  }
  stream->synchronize();
}

// Runs until a test stops it, or for longer than any test waits. Sends so many bytes that a slow link has an effect.
void runs_until_stopped(World& world) {
  constexpr int64_t kPartBytes = 1 << 18;
  auto& ranks = world.communicator();
  const auto gathered = ranks.allocate(kPartBytes * ranks.rank_count(), Category::kSlots, "whole");
  const auto stream = world.device().make_stream(Lane::kGather);
  for (int round = 1; round <= 20000; ++round) {
    ranks.all_gather_in_place(*stream, {&gathered, 0}, kPartBytes, {"h.1", round});
    stream->synchronize();
    if (world.rank() == 0) fmt::print(stderr, "met {} times\n", round);
    sleep_seconds(0.003);
  }
}

void stop_this_process() { raise(SIGSTOP); }

// This handler runs before that of MPI, because it is registered later.
void is_stopped_at_exit(World& world) {
  if (world.rank() == 1) std::atexit(stop_this_process);
  barrier(world, Lane::kReduce, {"h.1", 1});
}

bool stops_in_finalize = false;

void is_stopped_in_finalize(World& world) {
  stops_in_finalize = world.rank() == 1;
  barrier(world, Lane::kReduce, {"h.1", 1});
}

// Stops mpiexec, the parent of this process, for some seconds. Another process continues it, because this one may exit.
void stop_mpiexec(int seconds) {
  const pid_t mpiexec = getppid();
  std::fprintf(stderr, "mpiexec is stopped\n");
  kill(mpiexec, SIGSTOP);
  if (fork() != 0) return;
  sleep(seconds);
  kill(mpiexec, SIGCONT);
  _exit(0);
}

bool mpiexec_stops = false;

/// Returns the PMIx library, or null if Open MPI has not loaded it.
void* pmix_library() { return dlopen("libpmix.so.2", RTLD_NOW | RTLD_NOLOAD); }

void mpiexec_stops_at_exit(World& world) {
  mpiexec_stops = world.rank() == 1;
  barrier(world, Lane::kReduce, {"h.1", 1});
}

void succeeds(World& world) { barrier(world, Lane::kReduce, {"h.1", 1}); }

void gathers_too_much(World& world) {
  world.communicator().gather_objects(std::string(world.rank() == 1 ? std::size_t{1} << 30 : 1, 'x'));
}

/// After this call, ranks cannot open one another's files in /proc, even as root. Call it before the world exists.
void deny_proc_access() {
  const __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capset, &header, none) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0) std::perror("deny_proc_access");
}

int run(const std::string& how, double timeout_seconds) {
  const std::map<std::string, void (*)(World&)> all = {{"never_arrives", never_arrives},
                                                       {"misses_set_up", misses_set_up},
                                                       {"differ_in_purpose", differ_in_purpose},
                                                       {"differ_in_call", differ_in_call},
                                                       {"misses_a_group", misses_a_group},
                                                       {"never_arrives_others_late", never_arrives_others_late},
                                                       {"misses_set_up_first_is_late", misses_set_up_first_is_late},
                                                       {"aborts_in_set_up", aborts_in_set_up},
                                                       {"throws_beside_a_group", throws_beside_a_group},
                                                       {"differ_in_size", differ_in_size},
                                                       {"throws", throws},
                                                       {"throws_wrong_use", throws_wrong_use},
                                                       {"throws_while_others_compute", throws_while_others_compute},
                                                       {"throws_under_queued_work", throws_under_queued_work},
                                                       {"is_killed", is_killed},
                                                       {"is_stopped", is_stopped},
                                                       {"differ_in_count", differ_in_count},
                                                       {"differ_in_operation", differ_in_operation},
                                                       {"runs_until_stopped", runs_until_stopped},
                                                       {"is_stopped_before_start", succeeds},
                                                       {"is_stopped_at_exit", is_stopped_at_exit},
                                                       {"is_stopped_in_finalize", is_stopped_in_finalize},
                                                       {"succeeds", succeeds},
                                                       {"mpiexec_stops_at_exit", mpiexec_stops_at_exit},
                                                       {"gathers_too_much", gathers_too_much},
                                                       {"denies_proc_access", succeeds}};
  if (how == "denies_proc_access") deny_proc_access();
  if (how == "is_stopped_before_start" && launched_rank() == 1) stop_this_process();
  if (how == "is_stopped_at_exit") limit_wait_at_exit(timeout_seconds);
  try {
    World::run(1, all.at(how), {.device = DeviceChoice::kHost, .timeout_seconds = timeout_seconds});
    constexpr int kSkipped = 77;
    return how == "mpiexec_stops_at_exit" && pmix_library() == nullptr ? kSkipped : 0;
  } catch (const Error& error) {
    fmt::print(stderr, "aliquot: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "aliquot: {}\n", error.what());
    return static_cast<int>(ExitCode::kFault);
  }
}

}  // namespace
}  // namespace aliquot

/// Replaces the function of the PMIx library, if Open MPI loads that library. MPI_Finalize() calls it to tell mpiexec
/// that the rank has finished.
extern "C" __attribute__((visibility("default"))) int PMIx_Finalize(const void* settings, std::size_t count) {
  if (std::exchange(aliquot::mpiexec_stops, false)) aliquot::stop_mpiexec(4);
  void* library = aliquot::pmix_library();
  const auto next =
      library == nullptr ? nullptr : reinterpret_cast<decltype(&PMIx_Finalize)>(dlsym(library, "PMIx_Finalize"));
  return next == nullptr ? -1 : next(settings, count);
}

extern "C" int PMPI_Finalize() __attribute__((weak));  // missing in a build without MPI

/// Replaces MPI's function of this name.
extern "C" int MPI_Finalize() {
  if (aliquot::stops_in_finalize) aliquot::stop_this_process();
  return PMPI_Finalize();
}

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  return aliquot::run(argv[1], std::atof(argv[2]));
}
