#pragma once
// Which build this is.

#include <string_view>

namespace aliquot {

/// The project's version: "0.1.0".
std::string_view version();
/// Of the library it was built with.
std::string_view hdf5_version();

/// A part that a build may lack, as configuring said it.
struct BuildFeature {
  std::string_view name;
  bool is_available = false;
  std::string_view why;  // versions where it is there, else what was not found
};
BuildFeature cuda_part();  // with NCCL
BuildFeature mpi_part();

}  // namespace aliquot
