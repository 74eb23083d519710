// Reads token files of other programs according to their headers, rejects other formats, and checks the range of every
// token.
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "apps/data/token_check.h"
#include "apps/data/token_source.h"
#include "kernels/system/error.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

using namespace std::string_literals;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::string llmc(int32_t magic, int32_t version, int32_t count, const std::vector<T>& tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = count;
  return bytes_of(header) + bytes_of(tokens);
}

std::string numpy(const std::string& header, const std::string& data, char version = 1) {
  std::string text = header + "\n";
  std::string file = "\x93NUMPY"s + version + '\0';
  const auto length = static_cast<uint32_t>(text.size());
  file.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return file + text + data;
}

class FileFormats : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) const {
    write_file(folder_.path() / name, bytes);
    return folder_.path() / name;
  }
  std::vector<int32_t> tokens(const std::string& name, const std::string& bytes) const {
    const auto source = open_token_source(write(name, bytes));
    std::vector<int32_t> all(static_cast<size_t>(source->token_count()));
    source->read(0, all, int64_t{1} << 31);
    return all;
  }
  /// Opens the file. Returns the error message without the prefix "--data PATH: ", or "accepted" if there is no error.
  std::string refusal(const std::string& name, const std::string& bytes) const {
    const std::string path = write(name, bytes), start = "--data " + path + ": ";
    try {
      open_token_source(path);
    } catch (const UsageError& error) {
      const std::string sentence = error.what();
      EXPECT_TRUE(sentence.starts_with(start)) << sentence;
      return sentence.substr(std::min(start.size(), sentence.size()));
    }
    return "accepted";
  }
  TemporaryDirectory folder_;
};

TEST_F(FileFormats, LlmcTokensAreReadAccordingToTheirHeader) {
  const std::vector<int32_t> expected{50256, 7, 300};
  const std::string of_16 = llmc<uint16_t>(20240520, 1, 3, {50256, 7, 300});
  const std::string of_32 = llmc<uint32_t>(20240801, 7, 3, {128000, 7, 300});
  for (const char* name : {"a.bin", "a.u32", "a.tokens"}) {
    EXPECT_EQ(tokens(name, of_16), expected) << name;
    EXPECT_EQ(tokens(name, of_32), (std::vector<int32_t>{128000, 7, 300})) << name;
  }
  EXPECT_EQ(open_token_source(write("a.bin", of_16))->describe(),
            write("a.bin", of_16) + " (3 16-bit tokens in the format of llm.c)");
}

TEST_F(FileFormats, InvalidLlmcHeadersAreRejected) {
  EXPECT_EQ(refusal("a.bin", llmc<uint16_t>(20240520, 1, 4, {1, 2, 3})),
            "the header declares 4 16-bit tokens in the format of llm.c, which need a file of 1032 bytes, but the file "
            "has 1030: it is "
            "truncated.");
  EXPECT_EQ(refusal("a.bin", llmc<uint32_t>(20240801, 7, 1, {1, 2})),
            "the header declares 1 32-bit tokens in the format of llm.c, which need a file of 1028 bytes, but the file "
            "has 1032: other "
            "data follows the tokens.");
  EXPECT_EQ(refusal("a.bin", llmc<uint16_t>(20240520, 2, 1, {1})),
            "the header declares 16-bit tokens in the format of llm.c of version 2: expected version 1.");
  EXPECT_EQ(refusal("a.bin", llmc<uint16_t>(20240520, 1, -1, {1})),
            "the header declares -1 16-bit tokens in the format of llm.c: expected 1 or more.");
  for (const auto& [magic, what] : {std::pair(20240326, "a file of model weights"),
                                    {20240803, "a file of model weights"},
                                    {20240327, "a file of debug data"},
                                    {20240328, "a tokenizer file"},
                                    {20240522, "an evaluation data set"},
                                    {20240527, "a file of optimizer state"}}) {
    EXPECT_EQ(refusal("gpt2.bin", llmc<uint16_t>(magic, 3, 0, {1})),
              "this is "s + what + " in the format of llm.c, not a file of tokens: use a .bin file with tokens.");
  }
}

TEST_F(FileFormats, NumpyIntegersAreReadAccordingToTheirHeader) {
  const std::vector<int32_t> expected{3, 200, 1};
  const auto read = [&](const char* type, const std::string& data, char version) {
    return tokens("a.npy",
                  numpy("{'descr': '"s + type + "', 'fortran_order': False, 'shape': (3,), }  ", data, version));
  };
  EXPECT_EQ(read("|u1", bytes_of<uint8_t>({3, 200, 1}), 1), expected);
  EXPECT_EQ(read("<u2", bytes_of<uint16_t>({3, 200, 1}), 1), expected);
  EXPECT_EQ(read("<i2", bytes_of<int16_t>({3, 200, 1}), 2), expected);
  EXPECT_EQ(read("<u4", bytes_of<uint32_t>({3, 200, 1}), 1), expected);
  EXPECT_EQ(read("<i4", bytes_of<int32_t>({3, 200, 1}), 3), expected);
  EXPECT_EQ(read("<u8", bytes_of<uint64_t>({3, 200, 1}), 1), expected);
  EXPECT_EQ(read("<i8", bytes_of<int64_t>({3, 200, 1}), 1), expected);
}

TEST_F(FileFormats, UnsupportedNumpyArraysAreRejected) {
  const std::string three = bytes_of<uint16_t>({1, 2, 3});
  for (const char* header : {"{'descr': '>u2', 'fortran_order': False, 'shape': (3,), }",
                             "{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }",
                             "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 1), }",
                             "{'descr': '<u2', 'fortran_order': False, 'shape': (), }",
                             "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (3,), }", "{'shape': (3,), }",
                             "{'descr': '<u2'", "{'descr': '<u2', 'shape': (99999999999999999999,)}", ""}) {
    EXPECT_NE(
        refusal("a.npy", numpy(header, three)).find("expected a one-dimensional .npy array of little-endian integers"),
        std::string::npos)
        << header;
  }
  const char* four = "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }";
  EXPECT_NE(refusal("a.npy", numpy(four, three)).find("it is truncated."), std::string::npos);
  EXPECT_NE(refusal("a.npy", numpy(four, three + three)).find("other data follows the tokens."), std::string::npos);
  EXPECT_EQ(refusal("a.npy", numpy("{'descr': '<u8', 'shape': (9223372036854775807,)}", three)),
            "the header declares 9223372036854775807 tokens, but the file has 66 bytes: it is truncated.");
  EXPECT_EQ(refusal("a.npy", numpy("{'descr': '<u2', 'shape': (0,)}", "")), "the array has no elements.");
  EXPECT_EQ(refusal("a.npy", "\x93NUMPY\x01\0\xff\xff{"s), "the header of the .npy file is truncated.");
}

TEST_F(FileFormats, OtherFormatsAreRecognizedAndRejected) {
  const std::string rest(64, '\1');
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"\x1f\x8b\x08\x00"s + rest, "this is a gzip file, not a file of tokens: decompress it first."},
      {"\x28\xb5\x2f\xfd" + rest, "this is a zstd file, not a file of tokens: decompress it first."},
      {"\xfd"
       "7zXZ\0"s +
           rest,
       "this is an xz file, not a file of tokens: decompress it first."},
      {"BZh91AY&SY" + rest, "this is a bzip2 file, not a file of tokens: decompress it first."},
      {"\x04\x22\x4d\x18" + rest, "this is an lz4 file, not a file of tokens: decompress it first."},
      {"PK\x03\x04" + rest,
       "this is a zip archive (the format of .npz files and PyTorch's .pt files), not a file of tokens: extract it "
       "first."},
      {"PAR1" + rest, "this is a parquet file, not a file of tokens: write its tokens as raw integers, .npy or HDF5."},
      {"ARROW1\0\0"s + rest,
       "this is an arrow file, not a file of tokens: write its tokens as raw integers, .npy or HDF5."},
      {"MMIDIDX\0\0"s + rest,
       "this is the index of a Megatron data set, not a file of tokens: use the .bin file of the same name."},
      {"\x10\0\0\0\0\0\0\0{\"w\":{}}        "s,
       "this is a safetensors file of weights, not a file of tokens: load it with --init."},
  };
  for (const auto& [bytes, sentence] : cases) {
    for (const char* name : {"a.bin", "a.u32", "a.txt", "a.h5"}) EXPECT_EQ(refusal(name, bytes), sentence) << name;
  }
  const std::string hdf5 = "\x89HDF\r\n\x1a\n" + rest;
  for (const char* name : {"a.bin", "a.u32", "a.txt"})
    EXPECT_EQ(refusal(name, hdf5), "this is an HDF5 file, not a file of tokens: rename it to end in .h5 or .hdf5.");
  // Files of raw tokens may begin with the two magic bytes of gzip. Text may begin with the first letters of a magic
  // string, such as "PAR1".
  EXPECT_EQ(tokens("a.bin", bytes_of<uint16_t>({0x8b1f, 0xff08, 3, 4, 5, 6, 7, 8, 9, 10})).size(), 10u);
  EXPECT_EQ(tokens("a.txt", "PARsley").size(), 7u);
}

TEST_F(FileFormats, RawIntegersOf32BitsHaveTheEndingU32) {
  EXPECT_EQ(tokens("a.u32", bytes_of<uint32_t>({128255, 0, 65536})), (std::vector<int32_t>{128255, 0, 65536}));
  EXPECT_EQ(refusal("a.u32", "12345"),
            "5 bytes are not a whole number of 32-bit tokens: the file is truncated, or it is not a file of tokens.");
}

TEST_F(FileFormats, IntegersWiderThanTheFileNameImpliesAreRejected) {
  std::vector<uint16_t> of_16;
  std::vector<uint32_t> of_32;
  std::vector<uint64_t> of_64;
  for (uint32_t i = 0; i < 40; ++i) {
    of_16.push_back(static_cast<uint16_t>(i * 1201 % 50257));
    of_32.push_back(i * 7001 % 128256);
    of_64.push_back(i * 7001 % 128256);
  }
  const auto looks_like = [](const char* as, int bits) {
    return "expected "s + as + ", but the file looks like " + std::to_string(bits) +
           "-bit integers (the upper half of each is 0 or nearly 0): ";
  };
  EXPECT_EQ(refusal("a.bin", bytes_of(of_32)),
            looks_like("16-bit tokens", 32) + "rename it to end in .u32; if it has 16-bit tokens, save them as .npy.");
  EXPECT_EQ(refusal("a.dat", bytes_of(of_32)),
            looks_like("bytes", 32) + "rename it to end in .u32; if it has 16-bit tokens, save them as .npy.");
  const std::string advice =
      "write 16-bit tokens to a .bin file or 32-bit tokens to a .u32 file, or save them as .npy.";
  EXPECT_EQ(refusal("a.bin", bytes_of(of_64)), looks_like("16-bit tokens", 64) + advice);
  EXPECT_EQ(refusal("a.u32", bytes_of(of_64)), looks_like("32-bit tokens", 64) + advice);
  EXPECT_EQ(refusal("a.dat", bytes_of(of_64)), looks_like("bytes", 64) + advice);
  EXPECT_EQ(refusal("a.txt", bytes_of(std::vector<uint16_t>(40, 'x'))),
            looks_like("bytes", 16) + "rename it to end in .bin; if it has 8-bit tokens, save them as 16-bit .npy.");
  of_32.push_back(7);
  std::string cut_short = bytes_of(of_32);
  cut_short.resize(cut_short.size() - 2);
  EXPECT_NE(refusal("a.bin", cut_short), "accepted") << "a truncated file of 32-bit integers must still be recognized";
  EXPECT_EQ(refusal("a.int32", bytes_of(of_32)),
            "unknown suffix .int32: expected raw tokens as .u16, .bin (16 bits) or .u32.");
  EXPECT_EQ(refusal("a.u16", bytes_of(of_16)), "accepted");
  // The contents of the next files match their names.
  EXPECT_EQ(refusal("a.bin", bytes_of(of_16)), "accepted");
  EXPECT_EQ(refusal("a.u32", bytes_of(of_32)), "accepted");
  EXPECT_EQ(refusal("a.bin", bytes_of(std::vector<uint16_t>(100, 0))), "accepted");
  std::vector<uint16_t> few_letters;
  for (uint16_t i = 0; i < 100; ++i) few_letters.push_back(i * 7 % 16);
  EXPECT_EQ(refusal("a.bin", bytes_of(few_letters)), "accepted");
}

std::string check(const TokenSource& source, int64_t vocabulary, int parts, int threads) {
  ThreadPool pool(threads);
  std::string first;
  for (int part = 0; part < parts; ++part) {
    try {
      check_tokens(source, vocabulary, {part, parts}, pool);
    } catch (const UsageError& error) {
      if (first.empty()) first = error.what();
    }
  }
  return first;
}

/// The check finds a token out of range at any position. The test includes positions at the boundaries of the parts
/// that are checked in parallel.
TEST_F(FileFormats, EveryTokenIsChecked) {
  constexpr size_t kCount = 9'000'001;
  std::vector<uint16_t> tokens(kCount, 99);
  for (const size_t place : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, kCount / 3, kCount / 2, kCount - 1}) {
    tokens[place] = 100;
    const std::string path = write("a.bin", bytes_of(tokens));
    const auto source = open_token_source(path);
    for (const int parts : {1, 2, 3}) {
      for (const int threads : {1, 2}) {
        EXPECT_EQ(check(*source, 101, parts, threads), "");
        EXPECT_EQ(
            check(*source, 100, parts, threads),
            "Token " + std::to_string(place) + " of " + source->describe() +
                " is 100, but the model's vocabulary has 100 entries: use a larger --vocab, or data tokenized for this "
                "model.");
      }
    }
    tokens[place] = 99;
  }
  tokens[7] = tokens[8'000'000] = 100;  // the error names the first token out of range
  const auto source = open_token_source(write("a.bin", bytes_of(tokens)));
  EXPECT_EQ(check(*source, 100, 1, 2).substr(0, 10), "Token 7 of");
}

TEST_F(FileFormats, TokensOfEveryWidthAreChecked) {
  const auto read = [&](const char* type, const std::string& data, int64_t vocabulary) {
    const std::string path =
        write("a.npy", numpy("{'descr': '"s + type + "', 'fortran_order': False, 'shape': (3,), }", data));
    return check(*open_token_source(path), vocabulary, 1, 1);
  };
  const auto is_token_1 = [](const std::string& sentence) { return sentence.starts_with("Token 1 of"); };
  EXPECT_TRUE(is_token_1(read("|u1", bytes_of<uint8_t>({1, 100, 2}), 100)));
  EXPECT_EQ(read("|u1", bytes_of<uint8_t>({1, 255, 2}), 256), "");
  EXPECT_EQ(read("|u1", bytes_of<uint8_t>({1, 255, 2}), 50257), "");
  // In the next four files, token 1 is negative. Some of these tokens would be in range if they were read as unsigned
  // integers.
  EXPECT_TRUE(is_token_1(read("|i1", bytes_of<int8_t>({1, -1, 2}), 50257)));
  EXPECT_TRUE(is_token_1(read("<i2", bytes_of<int16_t>({1, -20000, 2}), 50257)));
  EXPECT_TRUE(is_token_1(read("<i4", bytes_of<int32_t>({1, -1, 2}), int64_t{1} << 31)));
  EXPECT_TRUE(is_token_1(read("<i8", bytes_of<int64_t>({1, -1, 2}), 50257)));
  EXPECT_TRUE(is_token_1(read("<u4", bytes_of<uint32_t>({1, 50257, 2}), 50257)));
  EXPECT_EQ(read("<u4", bytes_of<uint32_t>({1, 50256, 2}), 50257), "");
  EXPECT_TRUE(is_token_1(read("<u8", bytes_of<uint64_t>({1, uint64_t{1} << 40, 2}), 50257)));
  EXPECT_EQ(read("<u8", bytes_of<uint64_t>({1, 50256, 2}), 50257), "");
}

TEST_F(FileFormats, CheckReportsProgressAndCanBeStopped) {
  const auto source = open_token_source(write("a.bin", std::string(20 << 20, '\1')));
  ThreadPool pool(1);
  std::vector<double> shares;
  const auto note = [&](double share) {
    shares.push_back(share);
    return true;
  };
  check_tokens(*source, 65536, {}, pool, note);
  EXPECT_EQ(shares.size(), 3u);  // `note` is called once for each 8 MiB of the file
  EXPECT_TRUE(std::ranges::is_sorted(shares));
  EXPECT_EQ(shares.back(), 1);
  int rounds = 0;
  check_tokens(*source, 65536, {}, pool, [&](double) { return ++rounds < 2; });
  EXPECT_EQ(rounds, 2) << "the check did not stop when its callback returned false";
}

}  // namespace
}  // namespace aliquot::test
