#pragma once
// Files for tests of `aliquot data`.

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>
#include <zlib.h>

namespace aliquot::test {

/// A temporary directory, which the destructor removes.
class TestFolder {
 public:
  TestFolder() : path_(std::filesystem::path(testing::TempDir()) / ("aliquot-text-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string write_gzip(const std::string& name, const std::string& bytes) const {
    const gzFile file = gzopen(path(name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

/// A tokenizer.json whose token N + 1 is the byte N of the text, and whose token 0 is </s>.
inline std::string byte_tokenizer() {
  std::string vocabulary = R"("</s>": 0)";
  for (int byte = 0; byte < 256; ++byte) {
    char name[32];
    std::snprintf(name, sizeof name, ", \"<0x%02X>\": %d", static_cast<unsigned>(byte), byte + 1);
    vocabulary += name;
  }
  return R"({"model": {"type": "BPE", "byte_fallback": true, "vocab": {)" + vocabulary + R"(}, "merges": []}})";
}

}  // namespace aliquot::test
