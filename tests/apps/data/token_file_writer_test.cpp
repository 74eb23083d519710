// Files of tokens appear only when they are complete, and never replace a file.
#include "apps/data/token_file_writer.h"

#include <cerrno>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>

#include "apps/data/token_source.h"
#include "kernels/system/error.h"
#include "tests/apps/tokenize/support.h"

namespace aliquot::test {
namespace {

/// A file system without RENAME_NOREPLACE, such as NFS.
class OldFileSystem : public FileSystem {
 public:
  int rename_at(int directory, const char* from, const char* to, unsigned flags) override {
    if (flags == 0) return FileSystem::rename_at(directory, from, to, flags);
    errno = EINVAL;
    return -1;
  }
};

std::vector<std::string> names_in(const std::string& folder) {
  return Directory::open(FileSystem::system(), folder).names();
}

class TokenFiles : public testing::Test {
 protected:
  void write(FileSystem& system, const std::function<void()>& before_finish) {
    TokenFileWriter writer(path_, 2, system);
    writer.append(std::vector<int32_t>{1, 2, 3});
    before_finish();
    writer.finish({.vocabulary_size = 4});
  }
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TestFolder folder_;
  const std::string path_ = folder_.path("out.h5");
  OldFileSystem old_;
};

/// Another program creates the file while this one encodes text.
TEST_F(TokenFiles, AFileThatAppearsMeanwhileIsKept) {
  for (FileSystem* system : {&FileSystem::system(), static_cast<FileSystem*>(&old_)}) {
    std::filesystem::remove(path_);
    EXPECT_THROW(write(*system, [&] { folder_.write("out.h5", "of another program"); }), FaultError);
    EXPECT_EQ(content(), "of another program");
    EXPECT_EQ(names_in(folder_.path("")), std::vector<std::string>{"out.h5"});
  }
}

TEST_F(TokenFiles, EveryFileSystemGetsTheFile) {
  for (FileSystem* system : {&FileSystem::system(), static_cast<FileSystem*>(&old_)}) {
    std::filesystem::remove(path_);
    write(*system, [] {});
    EXPECT_EQ(open_token_source(path_)->token_count(), 3);
    EXPECT_EQ(names_in(folder_.path("")), std::vector<std::string>{"out.h5"});
  }
}

/// Two commands that write the same file at the same time do not share a temporary file: the second to finish fails.
TEST_F(TokenFiles, TwoWritersOfOneNameDoNotDisturbEachOther) {
  EXPECT_THROW(write(FileSystem::system(), [&] { write(FileSystem::system(), [] {}); }), FaultError);
  EXPECT_EQ(open_token_source(path_)->token_count(), 3);
}

}  // namespace
}  // namespace aliquot::test
