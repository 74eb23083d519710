#pragma once
// The names of the worlds of a program, which make the file names of their flight records different.

#include <memory>
#include <string>

namespace aliquot {

/// The name of a world whose flight records are in a directory. No other world of the program whose records are there
/// has the same name while a rank of this process holds it. Empty: the first world of the launcher's first process.
/// Otherwise "PROCESS-NUMBER": the launcher's number of the process of rank 0, and the number of the world there.
class FlightWorld {
 public:
  FlightWorld() = default;
  /// Returns a free name for a world whose rank 0 is in this process. `process` is the launcher's number of it.
  static FlightWorld reserve(const std::string& directory, int process);
  /// Returns the name that rank 0 has reserved. Called by the other ranks, while rank 0 holds the name.
  static FlightWorld join(const std::string& directory, const std::string& name);

  const std::string& name() const;
  /// Keeps the name reserved until the process ends, because a file has it.
  void keep() const;

 private:
  struct Use;
  explicit FlightWorld(std::shared_ptr<Use> use) : use_(std::move(use)) {}

  std::shared_ptr<Use> use_;
};

}  // namespace aliquot
