// A program that initializes MPI itself and then creates a world. It requests MPI_THREAD_MULTIPLE if its argument is
// "multiple", and MPI_THREAD_SERIALIZED otherwise.
#include <fmt/format.h>
#include <mpi.h>
#include <string_view>

#include "sharding/world.h"
#include "tests/support/mpi_leaks.h"

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  const int wanted = std::string_view(argv[1]) == "multiple" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, wanted, &provided);
  int status = 0;
  try {
    aliquot::World::run(1, [](aliquot::World& world) { world.communicator().gather_objects("here"); },
                        {.device = aliquot::DeviceChoice::kHost, .timeout_seconds = 20});
  } catch (const aliquot::Error& error) {
    fmt::print(stderr, "aliquot: {}\n", error.what());
    status = static_cast<int>(error.exit_code());
  }
  MPI_Finalize();
  return status;
}
