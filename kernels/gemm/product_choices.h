#pragma once
// The fastest algorithms of matrix products on a GPU, remembered in a file.

#include <map>
#include <optional>
#include <string>

namespace aliquot {

/// The choices that a text file has for one kind of GPU and one version of cuBLASLt. Each line of the file has a kind
/// of GPU, a version, the index of an algorithm in cuBLASLt's list of candidates, and a product, with a tab between
/// them. If a product has several lines, the first one counts. Lines are only added, so several processes may use the
/// file. Used from one thread.
class ProductChoices {
 public:
  /// Reads the file, which may not exist yet. `device` is the kind of GPU and the version, as in the lines. Throws
  /// UsageError if the file cannot be read or has an invalid line.
  ProductChoices(std::string file, std::string device);

  std::optional<int> find(const std::string& product) const;
  /// Adds a choice, also to the file. Throws UsageError if the file cannot be written.
  void add(const std::string& product, int candidate);

 private:
  std::string file_, device_;
  std::map<std::string, int> candidates_;
};

/// The file that the environment variable ALIQUOT_PRODUCT_CHOICES names, or an empty string.
std::string product_choices_file();

}  // namespace aliquot
