// Checks that HDF5 files that are not valid checkpoints are rejected.
#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <string>
#include <vector>

#include "checkpoint/file/hdf5_handle.h"
#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/page_plan.h"
#include "checkpoint/file/tile_parts.h"
#include "checkpoint/hash/crc32c.h"
#include "checkpoint/snapshot.h"
#include "kernels/system/error.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::TemporaryDirectory;

/// Creates a file with the dataset /w through the HDF5 library, and calls check_structure() on it.
class StructureCheck : public ::testing::Test {
 protected:
  void SetUp() override { file_ = H5Fcreate(path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT); }

  std::filesystem::path path() const { return directory_.path() / "x.h5"; }

  void add(hid_t type, std::vector<hsize_t> extents, hid_t creation = H5P_DEFAULT, const char* name = "w") {
    const hid_t space = H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
    const hid_t dataset = H5Dcreate2(file_, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    ASSERT_GE(dataset, 0);
    const std::vector<char> zeros(4096, 0);
    if (creation == H5P_DEFAULT) H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
    const haddr_t offset = H5Dget_offset(dataset);
    tensor_.file_offset = offset == HADDR_UNDEF ? 4096 : static_cast<int64_t>(offset);
    H5Dclose(dataset);
    H5Sclose(space);
  }

  /// Returns the message that check_structure() throws, or an empty string.
  std::string check_error() {
    H5Fclose(file_);
    const std::string bytes = test::read_file(path());
    try {
      check_structure({tensor_}, static_cast<int64_t>(bytes.size()), [&](std::span<std::byte> to, int64_t offset) {
        std::memcpy(to.data(), bytes.data() + offset, to.size());
      });
    } catch (const FaultError& error) {
      return error.what();
    }
    return {};
  }

  TemporaryDirectory directory_;
  hid_t file_ = -1;
  TensorEntry tensor_{"w", {10, 10}, DType::kFloat32, 400, 0};
};

TEST_F(StructureCheck, AcceptsAPlainDataset) {
  add(H5T_IEEE_F32LE, {10, 10});
  EXPECT_EQ(check_error(), "");
}

TEST_F(StructureCheck, RejectsBigEndianData) {
  add(H5T_IEEE_F32BE, {10, 10});
  EXPECT_EQ(check_error(), "dataset w does not have the type little-endian float32");
}

TEST_F(StructureCheck, RejectsADifferentShape) {
  add(H5T_IEEE_F32LE, {100});
  EXPECT_EQ(check_error(), "dataset w does not have the shape that the manifest gives");
}

TEST_F(StructureCheck, RejectsADifferentOffset) {
  add(H5T_IEEE_F32LE, {10, 10});
  tensor_.file_offset += 4;
  EXPECT_EQ(check_error(), "dataset w is not at the offset that the manifest gives");
}

TEST_F(StructureCheck, RejectsSoftAndExternalLinks) {
  add(H5T_IEEE_F32LE, {10, 10}, H5P_DEFAULT, "real");
  H5Lcreate_soft("/real", file_, "w", H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_EQ(check_error(), "dataset w is reached through a soft or external link");
  SetUp();
  H5Lcreate_external("/etc/passwd", "/w", file_, "w", H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_EQ(check_error(), "dataset w is reached through a soft or external link");
}

TEST_F(StructureCheck, RejectsStorageThatIsNotContiguousInTheFile) {
  const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk[] = {5, 5};
  H5Pset_chunk(chunked, 2, chunk);
  H5Pset_deflate(chunked, 9);
  add(H5T_IEEE_F32LE, {10, 10}, chunked);
  EXPECT_EQ(check_error(), "dataset w is not contiguous");
  SetUp();
  const hid_t external = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_external(external, "/etc/passwd", 0, 400);
  add(H5T_IEEE_F32LE, {10, 10}, external);
  EXPECT_EQ(check_error(), "dataset w stores its data in another file");
  SetUp();
  const hid_t compact = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_layout(compact, H5D_COMPACT);
  add(H5T_IEEE_F32LE, {10, 10}, compact);
  EXPECT_EQ(check_error(), "dataset w is not contiguous");
  for (hid_t list : {chunked, external, compact}) H5Pclose(list);
}

TEST_F(StructureCheck, RejectsAGroupAndAMissingDataset) {
  H5Gclose(H5Gcreate2(file_, "w", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  EXPECT_NE(check_error(), "");
  SetUp();
  EXPECT_EQ(check_error(), "dataset w is absent");
}

TEST_F(StructureCheck, RejectsEveryTruncation) {
  add(H5T_IEEE_F32LE, {10, 10});
  H5Fclose(file_);
  const std::string bytes = test::read_file(path());
  for (size_t size = 0; size < bytes.size(); size += 16) {
    EXPECT_THROW(check_structure({tensor_}, static_cast<int64_t>(size),
                                 [&](std::span<std::byte> to, int64_t offset) {
                                   std::memcpy(to.data(), bytes.data() + offset, to.size());
                                 }),
                 FaultError);
  }
}

TEST(PagePlan, RejectsExtentsThatDoNotTileWholePages) {
  const auto plan = [](std::vector<FileExtent> extents) { return plan_pages(extents, 4096); };
  EXPECT_EQ(plan({{0, 100, 0, 0}, {100, 4096, 1, 0}}).fragments.size(), 1u);
  EXPECT_THROW(plan({{0, 100, 0, 0}, {200, 4096, 1, 0}}), FaultError);
  EXPECT_THROW(plan({{0, 100, 0, 0}, {50, 4096, 1, 0}}), FaultError);
  EXPECT_THROW(plan({{0, 0, 0, 0}, {0, 4096, 1, 0}}), FaultError);
  EXPECT_THROW(plan({{0, 4096, 0, 0}, {4096, 5000, 1, 0}}), FaultError);
}

TEST(TileParts, RejectsPartsThatDoNotTileTheFile) {
  const auto combine = [](const std::vector<TilePart>& parts) {
    return combine_tile_crcs({to_bytes(std::span<const TilePart>(parts))}, 5000);
  };
  EXPECT_EQ(combine({{3000, 2000, 7}, {0, 3000, 9}}).size(), 1u);
  EXPECT_THROW(combine({{0, 3000, 9}, {3001, 1999, 7}}), FaultError);
  EXPECT_THROW(combine({{0, 3000, 9}, {2999, 2001, 7}}), FaultError);
  EXPECT_THROW(combine({{0, 3000, 9}}), FaultError);
}

/// Three ranks have every third run of 100 bytes of bytes 1000 to 5000.
TEST(TileParts, CombinePartsThatSeveralRanksHave) {
  std::vector<std::byte> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i / 7);
  std::vector<TilePart> parts = {{0, 1000, crc32c(std::span(bytes).first(1000)), 0}};
  for (int64_t rank = 0; rank < 3; ++rank) {
    TilePart& part = parts.emplace_back(TilePart{1000, 4000, 0, 4000});
    for (int64_t at = 1000 + 100 * rank; at < 5000; at += 300)
      add_to_part(part, at, 100, crc32c(std::span(bytes).subspan(static_cast<size_t>(at), 100)));
  }
  const auto combine = [](const std::vector<TilePart>& of) {
    return combine_tile_crcs({to_bytes(std::span<const TilePart>(of))}, 5000);
  };
  EXPECT_EQ(combine(parts), std::vector<uint32_t>{crc32c(bytes)});
  auto twice = parts;
  twice.push_back(parts.back());
  EXPECT_THROW(combine(twice), FaultError);
  parts.pop_back();
  EXPECT_THROW(combine(parts), FaultError);
}

TEST(Snapshots, ThrowUnavailableErrorIfTheMemoryCannotBeAllocated) {
  EXPECT_THROW(Snapshot(int64_t{1} << 56, nullptr), UnavailableError);
}

TEST(Hdf5Errors, NameTheInnermostCause) {
  const Hdf5Lock lock;
  try {
    hdf5_checked(H5Fopen("/no/such/file.h5", H5F_ACC_RDONLY, H5P_DEFAULT), "open a file");
    FAIL();
  } catch (const FaultError& error) {
    EXPECT_NE(std::string(error.what()).find("No such file or directory"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace aliquot
