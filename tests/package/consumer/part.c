/* An external MPI program in C: the ranks but the last form a world. Prints its sum of the ranks, and the message for a
 * communicator that does not exist. */
#include <aliquot/mpi.h>
#include <stdio.h>

static int use(MPI_Comm part) {
  aliquot_world* world = NULL;
  int status = aliquot_world_from_mpi(part, NULL, &world);
  if (status == ALIQUOT_DONE) {
    double sum = aliquot_rank(world) + 1;
    status = aliquot_sum(world, &sum, 1);
    if (aliquot_rank(world) == 0) printf("%d ranks, sum %g\n", aliquot_rank_count(world), sum);
  }
  if (status != ALIQUOT_DONE) fprintf(stderr, "part: %s\n", aliquot_message());
  aliquot_world_free(world);
  return status;
}

int main(int count, char** words) {
  int level, rank, ranks, status = ALIQUOT_DONE;
  MPI_Comm part;
  MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_split(MPI_COMM_WORLD, rank == ranks - 1 ? MPI_UNDEFINED : 0, rank, &part);
  if (part != MPI_COMM_NULL) {
    status = use(part);
    MPI_Comm_free(&part);
  } else {
    aliquot_world* world = NULL;
    if (aliquot_world_from_mpi(part, NULL, &world) == ALIQUOT_USAGE) printf("told: %s\n", aliquot_message());
  }
  MPI_Finalize();
  return status;
}
