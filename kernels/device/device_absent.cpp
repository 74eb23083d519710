// The GPU functions in a build without CUDA. Those that need a GPU throw.

#include "kernels/device/device.h"
#include "kernels/device/time_marks.h"
#include "kernels/device/work_graph.h"
#include "kernels/system/error.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

constexpr const char* kNoCuda =
    "this build of aliquot has no CUDA support: use a host device, or install the CUDA toolkit and NCCL and rebuild "
    "with -DALIQUOT_CUDA=ON";

}  // namespace

std::unique_ptr<Device> make_cuda_device(int) { throw UnavailableError(kNoCuda); }

std::unique_ptr<Stream> wrap_cuda_stream(Device&, Lane, CUstream_st*) { throw UnavailableError(kNoCuda); }

std::unique_ptr<TimeMarks> make_cuda_time_marks(Device&, std::size_t) { throw UnavailableError(kNoCuda); }

class WorkCapture::Open {};
WorkCapture::WorkCapture(Stream&) { throw UnavailableError(kNoCuda); }
WorkCapture::~WorkCapture() = default;
std::unique_ptr<WorkGraph> WorkCapture::end() { throw UnavailableError(kNoCuda); }
bool is_captured(Stream&) { return false; }
bool can_capture(Stream&) { return false; }

int cuda_device_count() noexcept { return 0; }

std::string gpu_uuid(Device&) { return {}; }
GpuMemoryUse gpu_memory_use(Device&) { return {}; }

}  // namespace aliquot
