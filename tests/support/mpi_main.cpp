// main() of GoogleTest programs under mpirun. Every rank runs the same tests in the same order. Rank 0 reports them,
// and the other ranks print only their own failures.
#include <gtest/gtest.h>

#include "sharding/mpi/handles_mpi.h"
#include "tests/support/mpi_leaks.h"

namespace {

class FailuresOnly : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, result.file_name() == nullptr ? "?" : result.file_name(),
                 result.line_number(), result.message());
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  aliquot::start_mpi(60);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) unsetenv("GTEST_OUTPUT");  // only rank 0 writes a report file
  testing::InitGoogleTest(&argc, argv);
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(rank));
  }
  return RUN_ALL_TESTS();
}
