// Usage: communication_worker OPERATION RANKS ROUNDS. This version is for builds without MPI. Prints one line per
// round, such as "threads 12.345 plain 10.123": the name of each variant and its time in microseconds. The variant
// `threads` uses Aliquot's communicator. The variant `plain` uses no communicator, and is absent if the operation has
// no such reference.
#include <cstdio>
#include <cstdlib>

#include "bench/communication_team.h"

int main(int argc, char** argv) {
  using namespace aliquot::bench;
  if (argc != 4) {
    std::fprintf(stderr, "usage: communication_worker OPERATION RANKS ROUNDS\n");
    return 1;
  }
  const std::string name = argv[1];
  const int rank_count = std::atoi(argv[2]), round_count = std::atoi(argv[3]);
  RankTeam threads(rank_count, operation(name));
  const bool has_plain = static_cast<bool>(plain(name));
  RankTeam reference(rank_count, has_plain ? plain(name) : operation(name));
  for (int round = -1; round < round_count; ++round) {
    const double ours = threads.run(), theirs = reference.run();
    if (round < 0) continue;  // warm-up: touches pages and loads code
    std::printf("threads %.3f", ours * 1e6);
    if (has_plain) std::printf(" plain %.3f", theirs * 1e6);
    std::printf("\n");
  }
  return 0;
}
