#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "apps/metrics/metrics.h"
#include "apps/metrics/run_record.h"
#include "apps/plan/use_costs.h"
#include "apps/train/digest.h"
#include "apps/train/reporting/memory_table.h"
#include "apps/train/reporting/progress.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

TEST(Metrics, NumbersReadBackToTheSameBits) {
  StepRecord record{
      .step = 7, .loss = 0.1 + 0.2, .grad_norm = std::nan(""), .lr = static_cast<double>(3e-4f), .tokens = 4096};
  const auto back = nlohmann::json::parse(json(record).dump());
  EXPECT_EQ(back["loss"].get<double>(), record.loss);
  EXPECT_EQ(back["lr"].get<double>(), record.lr);
  EXPECT_TRUE(back["grad_norm"].is_null());
  EXPECT_EQ(back["skipped"], false);
  EXPECT_EQ(back["memory"].size(), 9u);  // seven categories, peak and outside
}

TEST(Metrics, LineMatchesTheDocumentation) {
  StepRecord record{.step = 1,
                    .loss = 10.82,
                    .grad_norm = 1.2,
                    .lr = 0.0003,
                    .tokens = 4096,
                    .step_seconds = 0.8,
                    .tokens_per_second = 5120};
  EXPECT_EQ(
      json(record, {{"digest", "00"}}).dump(),
      R"({"step":1,"loss":10.82,"grad_norm":1.2,"lr":0.0003,"tokens":4096,"step_seconds":0.8,)"
      R"("tokens_per_second":5120.0,"skipped":false,"memory":{"parameters":0,"gradients":0,"optimizer":0,"slots":0,)"
      R"("communication":0,"staging":0,"activations":0,"peak":0,"outside":0},"digest":"00"})");
}

TEST(Metrics, AppendsOrTruncates) {
  const std::string path = testing::TempDir() + "aliquot_metrics.jsonl";
  const auto line_count = [&path] {
    std::ifstream file(path);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  MetricsFile(path, MetricsFile::Mode::kTruncate).write(json(DoneRecord{.digest = "00"}));
  MetricsFile(path, MetricsFile::Mode::kAppend).write(json(DoneRecord{}));
  EXPECT_EQ(line_count(), 2);
  MetricsFile(path, MetricsFile::Mode::kTruncate).write(json(DoneRecord{}));
  EXPECT_EQ(line_count(), 1);
  std::filesystem::remove(path);
  EXPECT_THROW(MetricsFile("/no/such/directory/file.jsonl", MetricsFile::Mode::kTruncate), UsageError);
  MetricsFile full("/dev/full", MetricsFile::Mode::kAppend);
  EXPECT_THROW(full.write(json(DoneRecord{})), FaultError);
}

/// Writes `text` to `path` and reads it with read_run_record(). Returns the steps, or the error without the path.
std::string record_of(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  try {
    std::string steps;
    for (const Json& step : read_run_record(path).steps) steps += step["step"].dump() + ' ';
    return steps;
  } catch (const UsageError& error) {
    return std::string(error.what()).substr(path.size());
  }
}

/// A run was killed while it wrote a line, and the resumed run appends to the file.
TEST(Metrics, AppendAfterATruncatedLine) {
  const std::string path = testing::TempDir() + "aliquot_cut_metrics.jsonl";
  const std::string before = "{\"run\":{\"version\":1}}\n{\"step\":1}\n";
  for (const std::string cut : {"", "{", "{\"step\":2,\"lo", "{\"step\":2}\n{\"stragglers\":{\"st"}) {
    std::ofstream(path) << before << cut;
    MetricsFile file(path, MetricsFile::Mode::kAppend);
    file.write({{"run", {{"version", 2}}}});
    file.write({{"step", 2}});
    const RunRecord record = read_run_record(path);
    EXPECT_EQ(record.run["version"], 2) << cut;
    EXPECT_EQ(record.steps.size(), 2u) << cut;
  }
  std::filesystem::remove(path);
}

TEST(Metrics, OnlyTruncatedLinesAreSkipped) {
  const std::string path = testing::TempDir() + "aliquot_read_metrics.jsonl";
  const std::string run = "{\"run\":{}}\n", step = "{\"step\":1}\n", cut = "{\"step\":2,\"lo";
  const std::string no_line =
      ": this line is not a record: expected a file of aliquot train --metrics or aliquot plan --metrics.";
  EXPECT_EQ(record_of(path, run + step + cut), "1 ");
  EXPECT_EQ(record_of(path, run + step + cut + "\n"), "1 ");
  EXPECT_EQ(record_of(path, run + cut + "\n\n" + run + step), "1 ");
  EXPECT_EQ(record_of(path, run + cut + "\n{\"ru\n{\"run\":{\"ver\n" + run + step), "1 ");  // killed three times
  EXPECT_EQ(record_of(path, "{\"ru\n" + run + step), "1 ");
  EXPECT_EQ(record_of(path, cut), ":1" + no_line);
  EXPECT_EQ(record_of(path, run + cut + "\n" + step), ":2" + no_line);
  EXPECT_EQ(record_of(path, run + cut + "\n" + cut + "\n" + run), ":2" + no_line);
  EXPECT_EQ(record_of(path, run + step + "nonsense\n"), ":3" + no_line);
  EXPECT_EQ(record_of(path, run + "nonsense\n" + run), ":2" + no_line);
  EXPECT_EQ(record_of(path, run + "{\"other\":1}\n" + run), ":2" + no_line);
  EXPECT_EQ(record_of(path, run + "[1]\n" + run), ":2" + no_line);
  std::filesystem::remove(path);
}

TEST(Profile, IsReadFromMetricsWithATruncatedLine) {
  const std::string path = testing::TempDir() + "aliquot_profile.jsonl";
  const std::string run = R"({"run":{"options":{"ranks":1,"micro-batch":4,"sequence":8},)"
                          R"("plan":{"step":{"titles":["forward a","backward a"]}}}})"
                          "\n";
  const std::string rest =
      R"({"step":1,"step_seconds":9.0})"
      "\n"
      R"({"step":2,"step_seconds":2.0})"
      "\n"
      R"({"done":{"step":{"start_seconds":[0.0,0.25],"end_seconds":[0.25,1.0],"step_seconds":1.0}}})"
      "\n";
  std::ofstream(path) << run << "{\"step\":1,\"step_sec\n" << run << rest;
  const auto uses = read_profile(path, 4, 8);
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].forward_seconds, 0.5);
  EXPECT_EQ(uses[0].backward_seconds, 1.5);
  std::ofstream(path) << run << "nonsense\n" << run << rest;
  EXPECT_THROW(read_profile(path, 4, 8), UsageError);
  std::filesystem::remove(path);
}

TEST(Digest, IsTheHashOfSortedLines) {
  const auto hash = [](const std::vector<float>& values) {
    Sha256 sha;
    sha.update(std::as_bytes(std::span(values)));
    return sha.finish();
  };
  WeightDigest digest;
  digest.add("b.weight", DType::kFloat32, {2, 2}, hash({1, 2, 3, 4}));
  digest.add("a.bias", DType::kFloat32, {3}, hash({0.5f, -0.0f, 1e30f}));
  // The expected digest was computed with Python's hashlib, from lines in the format of WeightDigest.
  EXPECT_EQ(digest.finish(), "4256f2e50d2d6b25ec6abc93d9544522d1862cf63a1281b88f0238aead17bb7d");
}

TEST(Progress, LinesAndBarsFit) {
  const ProgressStep step{.step = 12, .loss = 3.21, .tokens_per_second = 5120, .grad_norm = 0.81, .lr = 3e-4};
  const std::string line = "step 12/100  loss 3.2100  norm 0.81  lr 0.0003  5120 tokens/s";
  EXPECT_EQ(progress_line(step, 100, 61), line + "  1 min 01 s left");
  EXPECT_EQ(progress_line(step, 100, 0), line);
  EXPECT_EQ(progress_line(step, 100, NAN), line);
  EXPECT_EQ(progress_bar(step, 100, 61, 80).substr(0, 8), "[###....");
  for (const int columns : {10, 40, 60, 80, 200})
    EXPECT_LT(progress_bar(step, 100, 61, columns).size(), static_cast<size_t>(columns));
  EXPECT_EQ(duration_text(41.2), "42 s");
  EXPECT_EQ(duration_text(200), "3 min 20 s");
  EXPECT_EQ(duration_text(7500), "2 h 05 min");
  EXPECT_EQ(duration_text(NAN), "?");
}

/// Returns the steps for which a run prints a line, if each step takes `seconds`.
std::vector<int64_t> logged(int64_t every, int64_t first_step, int64_t last_step, double seconds) {
  LogInterval interval(every, first_step, last_step);
  std::vector<int64_t> steps;
  for (int64_t step = first_step + 1; step <= last_step; ++step) {
    if (interval.is_due(step, 1000 + static_cast<double>(step) * seconds)) steps.push_back(step);
  }
  return steps;
}

TEST(LogInterval, ThinsTheLinesOfLongRuns) {
  const auto automatic = [](int64_t first, int64_t last, double seconds) {
    return logged(LogInterval::kAuto, first, last, seconds);
  };
  EXPECT_EQ(automatic(0, 150, 1e-3).size(), 150u);
  const auto lines = automatic(0, 10'007, 1e-3);
  EXPECT_EQ(lines.size(), 10u + 100u + 1u);
  EXPECT_EQ(std::vector(lines.begin() + 8, lines.begin() + 13), (std::vector<int64_t>{9, 10, 100, 200, 300}));
  EXPECT_EQ(lines.back(), 10'007);
  EXPECT_EQ(automatic(0, 59'999, 1e-3)[11], 1000);  // 500 is a multiple of the distance
  EXPECT_EQ(automatic(0, 59'999, 1e-3)[10], 500);
  EXPECT_EQ(automatic(5000, 10'000, 1e-3)[9], 5010);
  EXPECT_EQ(automatic(5000, 10'000, 1e-3)[10], 5050);
  // Slow steps have more lines: one every ten seconds.
  EXPECT_EQ(automatic(0, 10'000, 10).size(), 10'000u);
  EXPECT_EQ(automatic(0, 10'000, 1)[11], 30);
}

TEST(LogInterval, ObeysANumberOfSteps) {
  EXPECT_EQ(logged(4, 0, 10, 100), (std::vector<int64_t>{4, 8, 10}));
  EXPECT_EQ(logged(4, 6, 13, 1e-3), (std::vector<int64_t>{8, 12, 13}));
  EXPECT_EQ(logged(1, 0, 500, 1e-3).size(), 500u);
}

TEST(Progress, StyleFollowsTheOptions) {
  EXPECT_EQ(progress_style("lines", true, stdout), ProgressStyle::kNone);
  EXPECT_EQ(progress_style("none", false, stdout), ProgressStyle::kNone);
  EXPECT_EQ(progress_style("bar", false, stdout), ProgressStyle::kBar);
}

TEST(MemoryTable, ShowsPlannedBesideMeasured) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(int64_t{183} << 20), "183 MiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 30) - 1), "1.00 GiB");
  RankMemory rank;
  rank.planned[0] = rank.measured[0] = 1 << 20;
  rank.planned[2] = rank.measured[2] = 3 << 20;
  rank.planned_peak_bytes = rank.measured_peak_bytes = 4 << 20;
  std::vector<RankMemory> ranks(10, rank);
  const std::string table = memory_table(ranks);
  EXPECT_NE(table.find("agree to the byte"), std::string::npos);
  EXPECT_NE(table.find("and 2 more ranks"), std::string::npos);
  EXPECT_NE(table.find("4.00 MiB"), std::string::npos);
  EXPECT_EQ(table.find("gradients"), std::string::npos);  // an unused category has no column
  ranks[9].measured[0] += 1;
  EXPECT_NE(memory_table(ranks).find("planned and measured differ"), std::string::npos);
  RankMemory full;
  full.planned.fill(1000 << 20);
  const std::string wide = memory_table(std::vector<RankMemory>{full});
  EXPECT_LE(wide.find('\n'), 110u);
}

TEST(MemoryTable, DividesTheMemoryOfEachGpu) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  RankMemory rank;
  rank.held_bytes = 100 * kMiB;
  rank.gpu = {
      .total_bytes = 2000 * kMiB, .used_bytes = 1000 * kMiB, .start_bytes = 400 * kMiB, .nccl_bytes = 30 * kMiB};
  std::vector<RankMemory> ranks(3, rank);
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r].gpu_rank = r == 1 ? 1 : 0;
  const std::string table = memory_table(ranks);
  EXPECT_NE(
      table.find("GPU of ranks 0, 2: 400 MiB before the run (CUDA contexts, kernels, other programs), 60.0 MiB of "
                 "NCCL's communicators, 200 MiB of the ranks, 340 MiB other; 1000 MiB of 1.95 GiB in use\n"),
      std::string::npos)
      << table;
  EXPECT_NE(table.find("GPU of rank 1: 400 MiB before the run"), std::string::npos) << table;
  EXPECT_EQ(memory_table(std::vector<RankMemory>(1)).find("GPU of"), std::string::npos);
}

}  // namespace
}  // namespace aliquot::test
