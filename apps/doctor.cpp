// aliquot doctor: what this build and this machine offer.
#include <dnnl.h>
#include <fmt/format.h>
#include <thread>
#include <unistd.h>

#include "apps/commands.h"
#include "apps/memory_table.h"
#include "apps/version.h"
#include "kernels/device.h"
#include "kernels/error.h"
#include "kernels/host_loops.h"

namespace aliquot {
namespace {

constexpr std::string_view kHelp =
    "aliquot doctor\n\n  Says what this build and this machine offer: cores, memory, vector loops, devices.\n";

}  // namespace

int run_doctor(const Arguments& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", kHelp);
    return 0;
  }
  if (!arguments.empty())
    throw UsageError("doctor: " + arguments[0] + " is not built yet; aliquot doctor takes nothing today.");
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const dnnl_version_t* dnnl = dnnl_version();
  fmt::print("aliquot   {}\n", version());
  fmt::print("cores     {}\n", std::thread::hardware_concurrency());
  fmt::print("memory    {}\n", bytes_text(memory));
  fmt::print("loops     {}\n", name(best_isa()));
  fmt::print("oneDNN    {}.{}.{}, one thread a product's tile\n", dnnl->major, dnnl->minor, dnnl->patch);
  fmt::print("GPUs      {}\n", cuda_device_count());
  return 0;
}

}  // namespace aliquot
