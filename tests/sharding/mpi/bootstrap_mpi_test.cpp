// Tests of the bootstrap of MPI processes: exchange of strings, and memory that the ranks of one node share.
#include "sharding/mpi/bootstrap_mpi.h"

#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <thread>

#include "kernels/system/machine_memory.h"
#include "sharding/comm/communicator.h"
#include "sharding/mpi/node_memory_mpi.h"
#include "sharding/mpi/thread_level_mpi.h"
#include "tests/sharding/memory/uneven_parts.h"

namespace aliquot {
namespace {

// Returns the eager limit of Open MPI's TCP transport in bytes, or 0 if this MPI has no such transport.
std::size_t tcp_eager_limit() {
  int provided = 0, index = 0, count = 0;
  std::size_t limit = 0;
  MPI_T_cvar_handle handle = nullptr;
  if (MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) return 0;
  if (MPI_T_cvar_get_index("btl_tcp_eager_limit", &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    MPI_T_cvar_read(handle, &limit);
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return limit;
}

// Aliquot itself requests MPI_THREAD_MULTIPLE, so the user can only change the library.
TEST(MpiThreadLevel, MessageAboutTheLibraryDoesNotAdviseToInitializeMpi) {
  EXPECT_NO_THROW(require_thread_multiple_provided(MPI_THREAD_MULTIPLE));
  try {
    require_thread_multiple_provided(MPI_THREAD_SERIALIZED);
    FAIL() << "expected UnavailableError";
  } catch (const UnavailableError& error) {
    EXPECT_STREQ(error.what(),
                 "Aliquot initialized MPI with MPI_THREAD_SERIALIZED, but Aliquot needs MPI_THREAD_MULTIPLE, because "
                 "its collectives call MPI on several threads: use an MPI library that provides it");
  }
}

// Without eager sends, a message would wait for a reply from the other rank, whose cores may be busy. Values that the
// user has set in the environment must not change.
TEST(MpiBootstrapTest, MessagesOverTcpAreSentEagerlyUnlessConfigured) {
  const std::size_t limit = tcp_eager_limit();
  if (limit == 0) GTEST_SKIP() << "this MPI does not have Open MPI's TCP transport";
  const char* configured_limit = std::getenv("ALIQUOT_TEST_TCP_EAGER_LIMIT");
  EXPECT_EQ(limit, configured_limit == nullptr ? std::size_t{512} << 10 : std::stoul(configured_limit));
  const char* flags = std::getenv("OMPI_MCA_btl_tcp_flags");
  EXPECT_EQ(flags != nullptr && std::string_view(flags).find("put") == std::string_view::npos,
            configured_limit == nullptr);
}

TEST(MpiBootstrapTest, AllGatherReturnsStringsInRankOrder) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{5'000'000}}) {
    const auto length_of = [length](int rank) { return rank % 2 == 0 ? length : length / 3; };
    const auto all =
        bootstrap.all_gather(std::string(length_of(bootstrap.rank()), static_cast<char>('a' + bootstrap.rank())));
    ASSERT_EQ(static_cast<int>(all.size()), bootstrap.rank_count());
    for (int r = 0; r < bootstrap.rank_count(); ++r) {
      EXPECT_EQ(all[r], std::string(length_of(r), static_cast<char>('a' + r)));
    }
  }
}

TEST(MpiBootstrapTest, SplitGroupsByColorAndOrdersByKey) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto group = bootstrap.split(bootstrap.rank() % 2, -bootstrap.rank());
  const auto all = group->all_gather(std::to_string(bootstrap.rank()));
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_EQ(std::stoi(all[i - 1]), std::stoi(all[i]) + 2);
  EXPECT_EQ(all[group->rank()], std::to_string(bootstrap.rank()));
}

TEST(MpiBootstrapTest, GatheringObjectsOfProcessesThrows) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  EXPECT_THROW(bootstrap.all_gather_objects(nullptr), std::logic_error);
}

TEST(MpiBootstrapTest, ColorsMayBeNegative) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto group = bootstrap.split(bootstrap.rank() % 2 == 0 ? -1 : -2, 0);
  EXPECT_EQ(group->rank_count(), (bootstrap.rank_count() + 1 - bootstrap.rank() % 2) / 2);
}

TEST(MpiBootstrapTest, GroupsReportGlobalRanks) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto group = bootstrap.split(bootstrap.rank() % 2, -bootstrap.rank());
  const auto alone = group->split(group->rank(), 0);
  EXPECT_EQ(group->global_rank(group->rank()), bootstrap.rank());
  EXPECT_EQ(alone->global_rank(0), bootstrap.rank());
  EXPECT_EQ(bootstrap.split_by_node()->global_rank(0), 0);
}

using Maker = std::unique_ptr<NodeMemory> (*)(MpiBootstrap&);
class EveryNodeMemory : public testing::TestWithParam<Maker> {};

TEST_P(EveryNodeMemory, IsZeroedAlignedAndShared) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto memory = GetParam()(bootstrap);
  ASSERT_NE(memory, nullptr);
  for (const int64_t size_bytes : {int64_t{1}, int64_t{4096}, int64_t{3'000'001}}) {
    const auto mapping = memory->map(size_bytes, "test");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping->writable) % 4096, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping->readable) % 4096, 0u);
    EXPECT_EQ(mapping->size_bytes, size_bytes);
    for (int64_t i = 0; i < size_bytes; ++i) ASSERT_EQ(mapping->readable[i], std::byte{0});
    bootstrap.all_gather("looked");
    for (int64_t i = bootstrap.rank(); i < size_bytes; i += bootstrap.rank_count()) {
      mapping->writable[i] = static_cast<std::byte>(1 + i % bootstrap.rank_count());
    }
    bootstrap.all_gather("written");
    for (int64_t i = 0; i < size_bytes; ++i) {
      ASSERT_EQ(mapping->readable[i], static_cast<std::byte>(1 + i % bootstrap.rank_count()));
    }
    bootstrap.all_gather("read");
  }
}

TEST_P(EveryNodeMemory, PartsOfDifferentSizesFillTheMapping) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  test::check_uneven_parts(GetParam()(bootstrap), bootstrap);
}

TEST_P(EveryNodeMemory, RanksMayFreeMappingsAtDifferentTimes) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto memory = GetParam()(bootstrap);
  auto first = memory->map(1 << 20, "first");
  auto second = memory->map(1 << 20, "second");
  if (bootstrap.rank() % 2 == 0) first.reset();
  const auto third = memory->map(1 << 20, "third");
  if (bootstrap.rank() % 2 == 1) first.reset();
  second->writable[bootstrap.rank()] = std::byte{7};
  bootstrap.all_gather("written");
  EXPECT_EQ(second->readable[bootstrap.rank_count() - 1], std::byte{7});
  for (int i = 0; i < 50; ++i) memory->map(1 << 20, "again");
  bootstrap.all_gather("done");
}

TEST_P(EveryNodeMemory, TooLargeMappingThrowsOnAllRanks) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto memory = GetParam()(bootstrap);
  try {
    memory->map(int64_t{1} << 46, "a model");
    FAIL() << "map() returned 64 TiB";
  } catch (const UnavailableError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot allocate 70368744177664 bytes"), std::string::npos)
        << error.what();
  }
  EXPECT_NE(memory->map(1, "still works"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryNodeMemory,
                         testing::Values([](MpiBootstrap& e) { return make_memfd_node_memory(e); },
                                         [](MpiBootstrap& e) { return make_window_node_memory(e); }),
                         [](const auto& test) { return test.index == 0 ? "Memfd" : "Window"; });

TEST(WindowNodeMemory, WindowsOfDestroyedGroupsAreFreed) {
  const auto window_count = [] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("osc_sm") != std::string::npos;
    return count;
  };
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto make = [&](int color) {
    const auto group = bootstrap.split_mpi(color, 0);
    const auto memory = make_window_node_memory(*group);
    const auto mapping = memory->map(4096, "test");
    mapping->writable[0] = std::byte{1};
    group->all_gather("written");
  };
  make(0);
  const int before = window_count();
  for (int i = 0; i < 30; ++i) make(i % 3 == 0 ? bootstrap.rank() % 2 : 0);
  EXPECT_LE(window_count(), before + 2);
  bootstrap.all_gather("end");
}

sigjmp_buf before_write;
volatile bool did_fault = false;

TEST(MemfdNodeMemory, WriteToTheReadOnlyMappingFaults) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto memory = make_memfd_node_memory(bootstrap);
  const auto mapping = memory->map(4096, "test");
  struct sigaction now {
  }, before{};
  now.sa_handler = [](int) {
    did_fault = true;
    siglongjmp(before_write, 1);
  };
  sigaction(SIGSEGV, &now, &before);
  if (sigsetjmp(before_write, 1) == 0) *const_cast<volatile std::byte*>(mapping->readable) = std::byte{1};
  sigaction(SIGSEGV, &before, nullptr);
  EXPECT_TRUE(did_fault);
  bootstrap.all_gather("done");
}

TEST(MemfdNodeMemory, OneRankMayNeedHalfOfTheAvailableMemory) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  test::check_one_large_part(make_memfd_node_memory(bootstrap), bootstrap, available_memory_bytes());
}

TEST(MemfdNodeMemory, LeavesNoFileAndNoDescriptor) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 60);
  const auto memory = make_memfd_node_memory(bootstrap);
  const auto before = descriptors();
  const auto mapping = memory->map(1 << 20, "test");
  EXPECT_EQ(descriptors(), before);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_EQ(entry.path().filename().string().find("aliquot"), std::string::npos);
  }
  bootstrap.all_gather("done");
}

// The next test must be the last, because an abort affects the rest of the process.

TEST(AbortedMpiBootstrapTest, ErrorOnEveryRankNamesTheMissingRank) {
  MpiBootstrap bootstrap(MPI_COMM_WORLD, 0.3);
  if (bootstrap.rank_count() < 3) GTEST_SKIP() << "needs three ranks";
  if (bootstrap.rank() == 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    bootstrap.all_gather("here");
    FAIL() << "all_gather() did not throw although rank 2 is missing";
  } catch (const CommunicationError& error) {
    EXPECT_EQ(std::string(error.what()),
              "rank 0 waited 0.3 s for the other ranks to set up together; rank 2 never arrived");
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 1.0);
  std::string why;
  EXPECT_TRUE(bootstrap.aborted(&why));
  EXPECT_THROW(bootstrap.all_gather("again"), CommunicationError);
}

}  // namespace
}  // namespace aliquot
