#include "apps/version.h"

namespace aliquot {

std::string_view version() { return ALIQUOT_VERSION_TEXT; }
std::string_view hdf5_version() { return ALIQUOT_HDF5_VERSION; }

BuildFeature cuda_part() { return {"CUDA", std::string_view(ALIQUOT_CUDA_BUILT) == "ON", ALIQUOT_CUDA_WHY}; }
BuildFeature cudnn_part() { return {"cuDNN", std::string_view(ALIQUOT_CUDNN_BUILT) == "ON", ALIQUOT_CUDNN_WHY}; }
BuildFeature mpi_part() { return {"MPI", std::string_view(ALIQUOT_MPI_BUILT) == "ON", ALIQUOT_MPI_WHY}; }

}  // namespace aliquot
