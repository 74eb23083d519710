#include "kernels/gemm/product_choices.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <sys/file.h>

#include "kernels/system/error.h"
#include "kernels/system/log_message.h"

namespace aliquot {
namespace {

constexpr char kTab = '\t';

struct Line {
  std::string device, product;
  int candidate = -1;
};

/// Returns no candidate if the text is not a valid line.
Line parse_line(const std::string& text) {
  Line line;
  const size_t version = text.find(kTab);
  const size_t number = version == std::string::npos ? version : text.find(kTab, version + 1);
  const size_t product = number == std::string::npos ? number : text.find(kTab, number + 1);
  if (product == std::string::npos) return line;
  line.device = text.substr(0, number);
  line.product = text.substr(product + 1);
  int candidate = -1;
  const char* end = text.data() + product;
  const auto parsed = std::from_chars(text.data() + number + 1, end, candidate);
  if (parsed.ec == std::errc() && parsed.ptr == end && candidate >= 0) line.candidate = candidate;
  return line;
}

using OwnedFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

OwnedFile open_to_add(const std::string& file) { return {std::fopen(file.c_str(), "ae"), std::fclose}; }

}  // namespace

ProductChoices::ProductChoices(std::string file, std::string device, bool adds)
    : file_(std::move(file)), device_(std::move(device)) {
  if (adds && open_to_add(file_) == nullptr)
    throw UsageError(fmt::format("cannot write {}, the value of ALIQUOT_PRODUCT_CHOICES", file_));
  read();
}

void ProductChoices::read() {
  std::ifstream in(file_);
  if (!in) throw UsageError(fmt::format("cannot read {}, the value of ALIQUOT_PRODUCT_CHOICES", file_));
  int number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    const Line line = parse_line(text);
    if (line.candidate < 0)
      throw UsageError(
          fmt::format("line {} of {}, the value of ALIQUOT_PRODUCT_CHOICES, is not valid: expected a kind "
                      "of GPU, a version, a number and a product, with a tab between them",
                      number, file_));
    if (line.device == device_) candidates_.try_emplace(line.product, line.candidate);
  }
}

std::optional<int> ProductChoices::find(const std::string& product) const {
  const auto found = candidates_.find(product);
  return found == candidates_.end() ? std::nullopt : std::optional(found->second);
}

int ProductChoices::add(const std::string& product, int candidate) {
  const OwnedFile file = open_to_add(file_);
  if (file != nullptr && flock(fileno(file.get()), LOCK_EX) == 0) {
    read();  // other processes may have added lines
    const auto known = candidates_.find(product);
    if (known != candidates_.end()) return known->second;
    const std::string line = fmt::format("{}\t{}\t{}\n", device_, candidate, product);
    if (std::fputs(line.c_str(), file.get()) < 0 || std::fflush(file.get()) != 0)
      log_message("cannot write {}, the value of ALIQUOT_PRODUCT_CHOICES", file_);
  }
  candidates_[product] = candidate;
  return candidate;
}

std::string product_choices_file() {
  const char* file = std::getenv("ALIQUOT_PRODUCT_CHOICES");
  return file == nullptr ? "" : file;
}

}  // namespace aliquot
