// Loads checkpoints with accidental damage: flipped bits, and truncated, exchanged or replaced files. Each load must
// throw a CheckpointError and leave the state unmodified.
#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/manifest.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::on_ranks;
using test::Shard;
using test::small_tensors;
using test::TemporaryDirectory;

/// Loads repeatedly into one poisoned shard, on one rank.
class Loader {
 public:
  explicit Loader(Communicator& communicator)
      : communicator_(communicator), shard_(small_tensors(), 1, 0, test::Partition::kBlocks, 1) {
    shard_.poison();
  }

  /// Returns whether a load throws CheckpointError and leaves the state unmodified.
  bool rejects(const std::filesystem::path& path) {
    const State before = shard_.state();
    try {
      load(shard_.state(), communicator_, path);
    } catch (const CheckpointError& error) {
      message_ = error.what();
      return shard_.is_poisoned() && before.step == shard_.state().step &&
             before.scalars.size() == shard_.state().scalars.size();
    }
    shard_.poison();
    return false;
  }

  /// Returns whether a load with state_is_fresh throws CheckpointError. Such a load may modify the tensors.
  bool rejects_in_one_pass(const std::filesystem::path& path) {
    LoadOptions options;
    options.state_is_fresh = true;
    bool rejected = false;
    try {
      load(shard_.state(), communicator_, path, options);
    } catch (const CheckpointError&) {
      rejected = true;
    }
    shard_.poison();
    return rejected;
  }

  bool accepts(const std::filesystem::path& path) {
    shard_.poison();
    load(shard_.state(), communicator_, path);
    const bool good = shard_.holds(1);
    shard_.poison();
    return good;
  }

  const std::string& message() const { return message_; }

 private:
  Communicator& communicator_;
  Shard shard_;
  std::string message_;
};

/// Runs `body` with a valid checkpoint of small_tensors(). `body` must undo its changes: the checkpoint is loaded
/// before and after.
void with_checkpoint(const std::function<void(Loader&, const std::filesystem::path&)>& body) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), small_tensors());
  const auto path = directory.path() / "step-00000100";
  const auto failures = on_ranks(1, [&](Communicator& communicator) {
    Loader loader(communicator);
    EXPECT_TRUE(loader.accepts(path));
    body(loader, path);
    EXPECT_TRUE(loader.accepts(path));
  });
  EXPECT_EQ(failures[0], "");
}

/// Flips bits of a file in place.
class BitFlipper {
 public:
  explicit BitFlipper(const std::filesystem::path& path) : file_(::open(path.c_str(), O_RDWR)) {}
  ~BitFlipper() { ::close(file_); }
  void flip(int64_t bit) const {
    char byte = 0;
    ASSERT_EQ(::pread(file_, &byte, 1, bit / 8), 1);
    byte = static_cast<char>(byte ^ (1 << (bit % 8)));
    ASSERT_EQ(::pwrite(file_, &byte, 1, bit / 8), 1);
  }

 private:
  int file_;
};

TEST(Damage, AFlipOfAnyBitOfTheManifestIsDetected) {
  with_checkpoint([](Loader& loader, const std::filesystem::path& path) {
    const BitFlipper flipper(path / "manifest.json");
    const auto bits = static_cast<int64_t>(std::filesystem::file_size(path / "manifest.json")) * 8;
    for (int64_t bit = 0; bit < bits; ++bit) {
      flipper.flip(bit);
      ASSERT_TRUE(loader.rejects(path)) << "bit " << bit;
      flipper.flip(bit);
    }
    std::cout << "flipped " << bits << " bits of manifest.json, all detected\n";
  });
}

TEST(Damage, AFlipInTheStructureOrInSampledDataIsDetected) {
  with_checkpoint([](Loader& loader, const std::filesystem::path& path) {
    const std::string bytes = test::read_file(path / "state.h5");
    const Manifest manifest = read_manifest(path);
    std::vector<bool> is_data(bytes.size());
    for (const TensorEntry& tensor : manifest.tensors) {
      for (int64_t i = 0; i < tensor.size_bytes; ++i) is_data[static_cast<size_t>(tensor.file_offset + i)] = true;
    }
    // In the HDF5 metadata, test all bytes that are not zero and the zero bytes at multiples of 64. If
    // ALIQUOT_EVERY_BIT is set, test every byte.
    const bool all = std::getenv("ALIQUOT_EVERY_BIT") != nullptr;
    std::vector<int64_t> bits, data_bits;
    for (size_t at = 0; at < bytes.size(); ++at) {
      const bool tested = all || bytes[at] != 0 || at % 64 == 0;
      for (int bit = 0; bit < 8 && (is_data[at] || tested); ++bit)
        (is_data[at] ? data_bits : bits).push_back(static_cast<int64_t>(at) * 8 + bit);
    }
    const size_t structure_bits = bits.size();
    std::ranges::shuffle(data_bits, std::mt19937_64(1));
    data_bits.resize(std::min<size_t>(data_bits.size(), 2000));
    bits.insert(bits.end(), data_bits.begin(), data_bits.end());
    const BitFlipper flipper(path / "state.h5");
    for (int64_t bit : bits) {
      flipper.flip(bit);
      ASSERT_TRUE(loader.rejects(path)) << "bit " << bit;
      if (bit % 8 == 0) {
        ASSERT_TRUE(loader.rejects_in_one_pass(path)) << "bit " << bit;
      }
      flipper.flip(bit);
    }
    std::cout << "flipped " << structure_bits << " bits of structure and " << data_bits.size()
              << " of data in state.h5, all detected\n";
    EXPECT_NE(loader.message().find("checksum of bytes 0 to"), std::string::npos) << loader.message();
  });
}

TEST(Damage, TruncatedExtendedAndZeroedFilesAreRejected) {
  with_checkpoint([](Loader& loader, const std::filesystem::path& path) {
    for (const char* name : {"state.h5", "manifest.json"}) {
      const std::string bytes = test::read_file(path / name);
      for (size_t size = 0; size < bytes.size(); size += 512) {
        test::write_file(path / name, bytes.substr(0, size));
        ASSERT_TRUE(loader.rejects(path)) << name << " cut to " << size;
      }
      test::write_file(path / name, bytes + std::string(4096, '\0'));
      EXPECT_TRUE(loader.rejects(path)) << name;
      test::write_file(path / name, bytes.substr(0, bytes.size() - 1));
      EXPECT_TRUE(loader.rejects(path)) << name;
      std::string zeroed = bytes;
      std::fill(zeroed.begin(), zeroed.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(512, bytes.size())),
                '\0');
      test::write_file(path / name, zeroed);
      EXPECT_TRUE(loader.rejects(path)) << name;
      test::write_file(path / name, bytes);
    }
  });
}

TEST(Damage, MissingFilesAndLinksDirectoriesAndPipesAreRejected) {
  with_checkpoint([](Loader& loader, const std::filesystem::path& path) {
    EXPECT_TRUE(loader.rejects(path.parent_path() / "step-00000999"));
    for (const char* name : {"state.h5", "manifest.json"}) {
      const auto away = path.parent_path() / "away";
      std::filesystem::rename(path / name, away);
      EXPECT_TRUE(loader.rejects(path)) << name << " is absent";
      std::filesystem::create_symlink(away, path / name);
      EXPECT_TRUE(loader.rejects(path)) << name << " is a link";
      std::filesystem::remove(path / name);
      std::filesystem::create_directory(path / name);
      EXPECT_TRUE(loader.rejects(path)) << name << " is a directory";
      std::filesystem::remove(path / name);
      ASSERT_EQ(::mkfifo((path / name).c_str(), 0600), 0);
      EXPECT_TRUE(loader.rejects(path)) << name << " is a pipe";
      std::filesystem::remove(path / name);
      std::filesystem::rename(away, path / name);
    }
  });
}

TEST(Damage, AManifestAboveTheSizeLimitIsNotRead) {
  with_checkpoint([](Loader& loader, const std::filesystem::path& path) {
    const auto size = std::filesystem::file_size(path / "manifest.json");
    std::filesystem::resize_file(path / "manifest.json", static_cast<uintmax_t>(kManifestBytesLimit) + 1);
    EXPECT_TRUE(loader.rejects(path));
    EXPECT_NE(loader.message().find("the limit for a manifest is 100000000"), std::string::npos) << loader.message();
    std::filesystem::resize_file(path / "manifest.json", size);
  });
}

/// Each file is replaced by the file of another step, and then by the file of another save of the same step.
TEST(Damage, FilesOfAnotherCheckpointAreRejected) {
  with_checkpoint([](Loader& loader, const std::filesystem::path& path) {
    test::save_test_state(path.parent_path(), small_tensors(), 2, 101);
    test::save_test_state(path.parent_path() / "before", small_tensors(), 2, 100);
    for (const auto& other : {path.parent_path() / "step-00000101", path.parent_path() / "before" / "step-00000100"}) {
      for (const char* name : {"state.h5", "manifest.json"}) {
        const std::string mine = test::read_file(path / name);
        test::write_file(path / name, test::read_file(other / name));
        EXPECT_TRUE(loader.rejects(path)) << other << " " << name;
        test::write_file(path / name, mine);
      }
    }
  });
}

TEST(Damage, LoadNewestSkipsAndReportsBadCheckpoints) {
  TemporaryDirectory directory;
  for (int64_t step : {100, 200, 300}) test::save_test_state(directory.path(), small_tensors(), 1, step);
  const auto flip = [&](const char* name) { BitFlipper(directory.path() / name / "state.h5").flip(800'000 % 4096); };
  flip("step-00000300");
  EXPECT_EQ(find_newest_valid(directory.path()).found->step, 200);
  const auto failures = on_ranks(2, [&](Communicator& communicator) {
    Shard shard(small_tensors(), 2, communicator.rank(), test::Partition::kBlocks, 1);
    const auto report = load_newest(shard.state(), communicator, directory.path());
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(shard.state().step, 200);
    EXPECT_TRUE(shard.holds(1));
    ASSERT_EQ(report->refused.size(), 1u);
    EXPECT_NE(report->refused[0].find("step-00000300"), std::string::npos);
    EXPECT_FALSE(load_newest(shard.state(), communicator, directory.path() / "none").has_value());
  });
  EXPECT_EQ(failures, std::vector<std::string>(2));
  flip("step-00000200");
  flip("step-00000100");
  EXPECT_FALSE(find_newest_valid(directory.path()).found.has_value());
  const auto all_bad = on_ranks(2, [&](Communicator& communicator) {
    Shard shard(small_tensors(), 2, communicator.rank(), test::Partition::kBlocks, 1);
    EXPECT_THROW(load_newest(shard.state(), communicator, directory.path()), CheckpointError);
  });
  EXPECT_EQ(all_bad, std::vector<std::string>(2));
}

TEST(Damage, SweepRemovesLeftoversAndNothingElse) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), small_tensors());
  test::save_test_state(directory.path(), small_tensors(), 1, 90);
  std::filesystem::create_directories(directory.path() / ".tmp-00000200-0123456789abcdef");
  test::write_file(directory.path() / ".tmp-00000200-0123456789abcdef" / "state.h5", "half");
  std::filesystem::rename(directory.path() / "step-00000090", directory.path() / ".old-step-00000090");
  std::filesystem::create_directories(directory.path() / "step-1");  // not the name of a checkpoint
  // A rank that is killed while it writes its flight record leaves such a file behind.
  test::write_file(directory.path() / ".tmp-flight-0001.txt-71", "half");
  for (const char* name : {"flight-0000.txt", "step-00000300", ".old-step-00000300"})
    test::write_file(directory.path() / name, "a file");
  EXPECT_EQ(list_checkpoints(directory.path()).size(), 1u);
  EXPECT_EQ(sweep_leftovers(directory.path()).size(), 3u);
  EXPECT_EQ(list_checkpoints(directory.path()).size(), 2u);
  EXPECT_EQ(find_newest_valid(directory.path()).found->step, 100);
  verify_checkpoint(directory.path() / "step-00000090");
  EXPECT_TRUE(std::filesystem::exists(directory.path() / "step-1"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / ".tmp-00000200-0123456789abcdef"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / ".tmp-flight-0001.txt-71"));
  for (const char* name : {"flight-0000.txt", "step-00000300", ".old-step-00000300"})
    EXPECT_TRUE(std::filesystem::exists(directory.path() / name)) << name;
}

}  // namespace
}  // namespace aliquot
