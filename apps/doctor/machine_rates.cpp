#include <atomic>

#include "apps/doctor/doctor.h"
#include "kernels/device/host_stream.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

int threads_of(Device& device) {
  if (device.kind() != DeviceKind::kHost) return 1;
  return as_host_stream(*device.make_stream(Lane::kCompute)).pool().thread_count();
}

int64_t memory_of(Device& device) {
  if (device.kind() == DeviceKind::kCuda) return gpu_memory_use(device).total_bytes;
  const int64_t bytes = machine_memory_bytes();
  return bytes == INT64_MAX ? 0 : bytes;
}

}  // namespace

MachineRates measure_machine(DeviceChoice device) {
  MachineRates rates;
  if (const int gpus = cuda_device_count(); gpus > 0 && device != DeviceChoice::kHost) rates.rank_count = gpus;
  std::atomic<int> ranks_here = 0;
  World::run(rates.rank_count,
             [&](World& world) {
               ++ranks_here;
               const CostModel cost = measure_rank(world, MeasuredSizes::of(world.device().kind()));
               if (world.rank() != 0) return;
               rates = {.has_gpus = world.device().kind() == DeviceKind::kCuda,
                        .rank_count = world.rank_count(),
                        .threads_per_rank = threads_of(world.device()),
                        .ranks_on_node = static_cast<int>(world.topology().ranks_of_node(0).size()),
                        .several_nodes = !world.topology().one_node(),
                        .memory_bytes = memory_of(world.device()),
                        .is_rank_zero = true,
                        .cost = cost};
             },
             {.device = device});
  rates.launched = ranks_here < rates.rank_count;
  return rates;
}

}  // namespace aliquot
