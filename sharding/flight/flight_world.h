#pragma once
// The names of the worlds of a program, which make the file names of their flight records different.

#include <memory>
#include <string>

namespace aliquot {

/// Reserves a name for a world, so that the worlds of a program do not overwrite flight records of each other. While an
/// object of this class exists, no other world gets the same name for the directory. The name is "PROCESS-NUMBER":
/// PROCESS is process_number() in rank 0 of the world, and NUMBER is the lowest one that is not reserved in that
/// process. Both count from 0. The name is empty if both are 0.
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
