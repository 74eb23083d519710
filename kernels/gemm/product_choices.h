#pragma once
// The fastest algorithms of matrix products on a GPU, remembered in a file.

#include <map>
#include <optional>
#include <string>

namespace aliquot {

/// The choices that a text file has for one kind of GPU and one version of cuBLASLt. Each line of the file has a kind
/// of GPU, a version, the index of an algorithm in cuBLASLt's list of candidates, and a product, with a tab between
/// them. If a product has several lines, the first one counts. Lines are only added, under a lock, so several processes
/// may use the file. Used from one thread.
class ProductChoices {
 public:
  /// Reads the file. `device` is the kind of GPU and the version, as in the lines. If `adds`, the file may not exist
  /// yet and must be writable. Throws UsageError if the file cannot be used or has an invalid line.
  ProductChoices(std::string file, std::string device, bool adds);

  std::optional<int> find(const std::string& product) const;
  /// Adds a choice, also to the file, unless the file has one by now. Returns the choice in the file. If the file can
  /// no longer be written, logs this and returns `candidate`.
  int add(const std::string& product, int candidate);

 private:
  void read();

  std::string file_, device_;
  std::map<std::string, int> candidates_;
};

/// The file that the environment variable ALIQUOT_PRODUCT_CHOICES names, or an empty string.
std::string product_choices_file();

}  // namespace aliquot
