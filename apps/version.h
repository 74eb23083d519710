#pragma once
// The version and the optional features of this build.

#include <string_view>

namespace aliquot {

/// The version of Aliquot, for example "0.1.0".
std::string_view version();
/// The commit of the sources of this build, for example "91df9a4175d0", with "-dirty" after it if they were changed.
/// Empty if the sources were not in a Git repository.
std::string_view commit();
/// The version of HDF5 with which this build was compiled.
std::string_view hdf5_version();

/// An optional feature of this build, as CMake configured it.
struct BuildFeature {
  std::string_view name;
  bool is_available = false;
  std::string_view why;  // the versions that CMake found, or the reason why the feature is missing
};
BuildFeature cuda_part();  // CUDA and NCCL, which are built together
BuildFeature cudnn_part();
BuildFeature mpi_part();

}  // namespace aliquot
