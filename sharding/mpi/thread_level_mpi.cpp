#include "sharding/mpi/thread_level_mpi.h"

#include <fmt/format.h>
#include <string>
#include <string_view>

#include "kernels/system/error.h"
#include "sharding/mpi/handles_mpi.h"

namespace aliquot {
namespace {

const char* thread_level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE: return "MPI_THREAD_MULTIPLE";
    default: return "an unknown thread level";
  }
}

[[noreturn]] void refuse_thread_level(const std::string& initialized_by, int level, const char* advice) {
  throw UnavailableError(fmt::format(
      "{} initialized MPI with {}, but Aliquot needs MPI_THREAD_MULTIPLE, because its collectives call MPI on several "
      "threads: {}",
      initialized_by, thread_level_name(level), advice));
}

constexpr const char* kAdviceForPrograms =
    "call MPI_Init_thread() with MPI_THREAD_MULTIPLE, and use an MPI library that provides it";

/// Returns the thread level with which this process initialized MPI.
int query_thread_level() {
  int level = 0;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level;
}

/// Returns the name and version of the MPI library, such as "Open MPI v4.1.4".
std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string_view all = text;
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

}  // namespace

void require_mpi_running(const char* function) {
  int initialized = 0, finalized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  check_mpi(MPI_Finalized(&finalized), "MPI_Finalized");
  if (initialized != 0 && finalized == 0) return;
  throw UsageError(fmt::format(
      "{} was called {}: call it between MPI_Init_thread() and MPI_Finalize(), of the MPI with which Aliquot was "
      "built ({})",
      function, initialized == 0 ? "before MPI was initialized" : "after MPI_Finalize()", library_version()));
}

void require_thread_multiple_of_program() {
  const int level = query_thread_level();
  if (level < MPI_THREAD_MULTIPLE) refuse_thread_level("the program", level, kAdviceForPrograms);
}

void require_thread_multiple_provided(int level) {
  if (level < MPI_THREAD_MULTIPLE) refuse_thread_level("Aliquot", level, "use an MPI library that provides it");
}

void require_thread_multiple_on_all(MPI_Comm comm) {
  struct {
    int level, rank;
  } own{query_thread_level(), 0}, least{};
  check_mpi(MPI_Comm_rank(comm, &own.rank), "MPI_Comm_rank");
  check_mpi(MPI_Allreduce(&own, &least, 1, MPI_2INT, MPI_MINLOC, comm), "MPI_Allreduce");
  if (least.level >= MPI_THREAD_MULTIPLE) return;
  refuse_thread_level(fmt::format("rank {}", least.rank), least.level, kAdviceForPrograms);
}

}  // namespace aliquot
