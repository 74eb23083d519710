#include <cstdio>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <vector>

#include "apps/data/token_source.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

// A temporary HDF5 file with one dataset.
class TokensFile {
 public:
  TokensFile(const char* name, hid_t type, const std::vector<int64_t>& tokens, hsize_t chunk = 0)
      : path_(testing::TempDir() + "aliquot_tokens.h5") {
    const hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hsize_t count = tokens.size();
    const hid_t space = H5Screate_simple(1, &count, nullptr), how = H5Pcreate(H5P_DATASET_CREATE);
    if (chunk > 0) H5Pset_chunk(how, 1, &chunk);
    const hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data());
    H5Dclose(dataset);
    H5Pclose(how);
    H5Sclose(space);
    H5Fclose(file);
  }
  ~TokensFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Hdf5Tokens, ReadsIntegersOfAnyWidth) {
  const std::vector<int64_t> tokens{0, 7, 100, 3};
  for (const hid_t type : {H5T_STD_U8LE, H5T_STD_I16LE, H5T_STD_U16LE, H5T_STD_I32LE, H5T_STD_I64LE, H5T_STD_U64LE}) {
    const TokensFile file("tokens", type, tokens);
    const auto source = open_token_source(file.path());
    ASSERT_EQ(source->token_count(), 4);
    std::vector<int32_t> read(3);
    source->read(1, read, 101);
    EXPECT_EQ(read, (std::vector<int32_t>{7, 100, 3}));
    EXPECT_THROW(source->read(1, read, 100), UsageError);
  }
}

TEST(Hdf5Tokens, NegativeAndHugeTokensAreRejected) {
  std::vector<int32_t> read(2);
  const TokensFile file("tokens", H5T_STD_I32LE, {-1, 5});
  EXPECT_THROW(open_token_source(file.path())->read(0, read, 1 << 30), UsageError);
  const TokensFile huge("tokens", H5T_STD_I64LE, {5, int64_t{1} << 40});
  EXPECT_THROW(open_token_source(huge.path())->read(0, read, 1 << 30), UsageError);
}

TEST(Hdf5Tokens, InvalidFilesAreRejected) {
  EXPECT_THROW(open_token_source("/no/such/file.h5"), UsageError);
  const TokensFile other("text", H5T_STD_U8LE, {1});
  EXPECT_THROW(open_token_source(other.path()), UsageError);
  const TokensFile real("tokens", H5T_IEEE_F32LE, {1});
  EXPECT_THROW(open_token_source(real.path()), UsageError);
  const TokensFile big_endian("tokens", H5T_STD_U16BE, {1});
  EXPECT_THROW(open_token_source(big_endian.path()), UsageError);
  const TokensFile chunked("tokens", H5T_STD_U16LE, {1, 2, 3}, 2);
  EXPECT_THROW(open_token_source(chunked.path()), UsageError);
  std::ofstream(chunked.path()) << "no HDF5 at all";
  EXPECT_THROW(open_token_source(chunked.path()), UsageError);
}

std::string refusal(const std::string& path) {
  try {
    open_token_source(path);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

/// The reader maps the file of --data, so it must not follow a link into another file. Opening a FIFO would block.
TEST(Hdf5Tokens, LinksIntoOtherFilesAreRejectedWithoutOpeningThem) {
  const std::string folder = testing::TempDir(), path = folder + "aliquot_links.h5", fifo = folder + "aliquot_fifo.h5";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const TokensFile real("tokens", H5T_STD_U16LE, {1, 2, 3});
  for (const std::string& target : {real.path(), fifo, folder + "absent.h5"}) {
    const hid_t direct = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_external(target.c_str(), "/tokens", direct, "tokens", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(direct);
    const std::string expected =
        "--data " + path + ": the dataset 'tokens' is a link into " + target + ": use that file.";
    EXPECT_EQ(refusal(path), expected);
    const hid_t soft = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_external(target.c_str(), "/", soft, "other", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/other/tokens", soft, "tokens", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(soft);
    EXPECT_EQ(refusal(path), expected);
  }
  std::remove(path.c_str());
  std::remove(fifo.c_str());
}

/// HDF5 opens the source files of a virtual dataset to find its extents.
TEST(Hdf5Tokens, VirtualDatasetsAreRejectedWithoutOpeningTheirSources) {
  const std::string folder = testing::TempDir(), path = folder + "aliquot_virtual.h5",
                    fifo = folder + "aliquot_source.h5";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t count = 4, unlimited = H5S_UNLIMITED, start = 0, one = 1;
  const hid_t space = H5Screate_simple(1, &count, &unlimited), source = H5Screate_simple(1, &count, &unlimited);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &unlimited, &one);
  H5Sselect_hyperslab(source, H5S_SELECT_SET, &start, nullptr, &unlimited, &one);
  const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
  ASSERT_GE(H5Pset_virtual(how, space, fifo.c_str(), "/tokens", source), 0);
  const hid_t dataset = H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
  ASSERT_GE(dataset, 0);
  H5Dclose(dataset);
  H5Pclose(how);
  H5Sclose(source);
  H5Sclose(space);
  H5Fclose(file);
  EXPECT_NE(refusal(path).find("is not contiguous"), std::string::npos) << refusal(path);
  std::remove(path.c_str());
  std::remove(fifo.c_str());
}

/// Replaces every occurrence of the 8-byte integer `from` in the file by `to`.
void replace_everywhere(const std::string& path, int64_t from, int64_t to) {
  std::ifstream read(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(read), {}};
  const auto as_bytes = [](int64_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  int count = 0;
  for (size_t at = bytes.find(as_bytes(from)); at != std::string::npos;
       at = bytes.find(as_bytes(from), at + 8), ++count)
    bytes.replace(at, 8, as_bytes(to));
  EXPECT_GT(count, 0) << "no " << from << " in " << path;
  std::ofstream(path, std::ios::binary) << bytes;
}

/// If a header declares more tokens than the file has, reading mapped memory would fault.
TEST(Hdf5Tokens, MoreTokensThanTheFileHasAreRejected) {
  const std::vector<int64_t> tokens(12'347, 1);
  const TokensFile file("tokens", H5T_STD_U16LE, tokens);
  replace_everywhere(file.path(), 12'347, 9'000'001);
  replace_everywhere(file.path(), 2 * 12'347, 2 * 9'000'001);
  try {
    open_token_source(file.path());
    FAIL() << "the reader accepted the file";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 ("--data " + file.path() + ": the file is shorter than its header states: it is truncated.").c_str());
  }
}

/// Writes a file of 10 tokens whose dataset loss_ranges has these values and extents.
std::string write_ranges(const std::string& path, hid_t type, const std::vector<int64_t>& values, hsize_t columns) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const std::vector<int64_t> tokens(10, 1);
  const hsize_t count = 10, extents[] = {values.size() / columns, columns};
  for (const bool is_tokens : {true, false}) {
    const hid_t space = is_tokens ? H5Screate_simple(1, &count, nullptr) : H5Screate_simple(2, extents, nullptr);
    const hid_t dataset = H5Dcreate2(file, is_tokens ? "tokens" : "loss_ranges", is_tokens ? H5T_STD_U16LE : type,
                                     space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, (is_tokens ? tokens : values).data());
    H5Dclose(dataset);
    H5Sclose(space);
  }
  H5Fclose(file);
  return path;
}

TEST(Hdf5Tokens, InvalidLossRangesAreRejected) {
  using testing::HasSubstr;
  const std::string path = testing::TempDir() + "aliquot_ranges.h5";
  const auto refused = [&](const std::vector<int64_t>& values, hid_t type = H5T_STD_I64LE, hsize_t columns = 2) {
    return refusal(write_ranges(path, type, values, columns));
  };
  EXPECT_EQ(refused({0, 3, 3, 4, 9, 10}), "");
  EXPECT_THAT(refused({0, 3, 2, 4}), HasSubstr("range 1 of the dataset 'loss_ranges' is [2, 4): expected ranges in"));
  EXPECT_THAT(refused({0, 11}), HasSubstr("within the 10 tokens"));
  EXPECT_THAT(refused({-1, 2}), HasSubstr("range 0"));
  EXPECT_THAT(refused({4, 4}), HasSubstr("range 0"));
  EXPECT_THAT(refused({}), HasSubstr("the dataset 'loss_ranges' is empty"));
  for (const std::string& other :
       {refused({0, 3}, H5T_STD_I32LE), refused({0, 3}, H5T_STD_U64LE), refused({0, 3, 4}, H5T_STD_I64LE, 3)})
    EXPECT_THAT(other, HasSubstr("must have the shape N x 2 and little-endian signed 64-bit integers"));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace aliquot::test
