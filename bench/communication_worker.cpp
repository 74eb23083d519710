// Usage: communication_worker OPERATION RANKS ROUNDS. Requires a build without MPI. Prints one line per round, "threads
// T plain T". Each T is the time of that variant in microseconds.
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
