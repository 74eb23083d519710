#pragma once
// The names of the worlds of a program, which make the file names of their flight records different.

#include <memory>
#include <string>

namespace aliquot {

/// The name of a world whose flight records are in a directory. No other world of the program whose records are there
/// has the same name while a rank of this process holds it. "PROCESS-NUMBER": the number of the process of the world's
/// rank 0 (see process_number()), and the lowest number that is free there. Both count from 0. The name 0-0 is empty.
class FlightWorld {
 public:
  FlightWorld() = default;
  /// Returns a free name for a world whose rank 0 is in this process. `process` is process_number().
  static FlightWorld reserve(const std::string& directory, int process);
  /// Returns the name that rank 0 has reserved. Called by the other ranks, while rank 0 holds the name.
  static FlightWorld join(const std::string& directory, const std::string& name);

  const std::string& name() const;
  /// Keeps the name reserved until the process ends, because a file has it or may have it.
  void keep() const;

 private:
  struct Use;
  explicit FlightWorld(std::shared_ptr<Use> use) : use_(std::move(use)) {}

  std::shared_ptr<Use> use_;
};

}  // namespace aliquot
