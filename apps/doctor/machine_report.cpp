#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "apps/doctor/doctor.h"
#include "apps/train/reporting/memory_table.h"
#include "apps/version.h"
#include "kernels/device/device.h"
#include "kernels/elementwise/host_loops.h"
#include "kernels/gemm/bf16_products.h"
#include "kernels/system/error.h"
#include "kernels/system/machine_memory.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

constexpr const char* kReconfigureHint = "then configure and build again";

std::string bf16_text() {
  switch (selected_bf16_product_method()) {
    case Bf16ProductMethod::kTiles: return "AMX tile products";
    case Bf16ProductMethod::kPairs: return "AVX512_BF16 dot products";
    case Bf16ProductMethod::kWidened: break;
  }
  return "fp32 products after conversion";
}

void report_host(MachineReport& report) {
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  report.lines.push_back({"aliquot", std::string(version())});
  report.lines.push_back({"cores", fmt::format("{}", std::thread::hardware_concurrency())});
  report.lines.push_back({"memory", fmt::format("{}, of which {} are available", format_bytes(memory),
                                                format_bytes(available_memory_bytes()))});
  report.lines.push_back({"loops", std::string(name(best_isa()))});
  report.lines.push_back({"bf16", bf16_text()});
  report.lines.push_back({"HDF5", std::string(hdf5_version())});
}

bool has_nvidia_gpu() {
  std::error_code ignored;
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/pci/devices", ignored)) {
    std::string vendor, kind;
    std::ifstream(device.path() / "vendor") >> vendor;
    std::ifstream(device.path() / "class") >> kind;
    if (vendor == "0x10de" && kind.starts_with("0x03")) return true;
  }
  return false;
}

void report_gpus(MachineReport& report) {
  const BuildFeature cuda = cuda_part();
  for (const BuildFeature& part : {cuda, cudnn_part()}) {
    report.lines.push_back(
        {std::string(part.name),
         fmt::format("{} ({})", part.is_available ? "in this build" : "not in this build", part.why)});
  }
  const int count = cuda_device_count();
  for (int gpu = 0; gpu < count; ++gpu) report.lines.push_back({"GPU", make_cuda_device(gpu)->describe()});
  if (count > 0) return;
  report.lines.push_back({"GPU", has_nvidia_gpu() ? "an NVIDIA GPU, which cannot be used" : "none"});
  if (!has_nvidia_gpu()) return;
  if (!cuda.is_available) {
    report.missing.push_back(
        fmt::format("CUDA support: install the CUDA toolkit and NCCL, {} with -DALIQUOT_CUDA=ON", kReconfigureHint));
    return;
  }
  try {
    make_cuda_device(0);
  } catch (const Error& error) {
    report.missing.push_back(error.what());
  }
}

std::string find_on_path(std::string_view program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/" + std::string(program);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

/// Whether MPI can be initialized with MPI_THREAD_MULTIPLE. The overlap of communication and computation needs this
/// mode. Tries it in a child process, because a broken installation ends the process.
bool mpi_starts() {
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    try {
      const World world = World::from_environment({.device = DeviceChoice::kHost, .kind = WorldChoice::kMpi});
    } catch (const Error&) {
      std::_Exit(1);
    }
    std::_Exit(0);  // skips the exit handlers that the parent registered
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void report_launchers(MachineReport& report) {
  const std::string mpirun = find_on_path("mpirun"), srun = find_on_path("srun");
  for (const std::string& launcher : {mpirun, srun}) {
    if (!launcher.empty()) report.lines.push_back({"launcher", launcher});
  }
  if (mpirun.empty() && srun.empty()) report.missing.push_back("a process launcher: apt install openmpi-bin");
}

void report_mpi(MachineReport& report) {
  const BuildFeature mpi = mpi_part();
  if (!mpi.is_available) {
    report.lines.push_back({"MPI", fmt::format("not in this build ({})", mpi.why)});
    report.missing.push_back(
        fmt::format("MPI, to run several processes: apt install libopenmpi-dev openmpi-bin, {}", kReconfigureHint));
    return;
  }
  const bool starts = mpi_starts();
  report.lines.push_back(
      {"MPI", fmt::format("{}; {}", mpi.why,
                          starts ? "supports calls from any thread (MPI_THREAD_MULTIPLE)" : "cannot be initialized")});
  report_launchers(report);
  if (!starts)
    report.missing.push_back(
        "a working MPI with MPI_THREAD_MULTIPLE: mpirun -n 1 aliquot train --steps 1 prints the cause");
}

/// The speed of a network link as text, or "speed unknown".
std::string read_link_speed(const std::filesystem::path& link) {
  int64_t megabits = 0;
  std::ifstream(link / "speed") >> megabits;
  if (megabits <= 0) return "speed unknown";
  return megabits >= 1000 ? fmt::format("{:g} Gbit/s", static_cast<double>(megabits) / 1000)
                          : fmt::format("{} Mbit/s", megabits);
}

void report_links(MachineReport& report) {
  std::error_code ignored;
  std::vector<std::string> texts;
  for (const auto& link : std::filesystem::directory_iterator("/sys/class/net", ignored)) {
    std::string state;
    std::ifstream(link.path() / "operstate") >> state;
    if (state == "up")
      texts.push_back(fmt::format("{}, {}", link.path().filename().string(), read_link_speed(link.path())));
  }
  for (const auto& adapter : std::filesystem::directory_iterator("/sys/class/infiniband", ignored)) {
    std::string number, rate;
    std::getline(std::ifstream(adapter.path() / "ports/1/rate"), rate);
    texts.push_back(fmt::format("{}, {}", adapter.path().filename().string(), rate.empty() ? "rate unknown" : rate));
  }
  std::ranges::sort(texts);
  for (std::string& text : texts) report.lines.push_back({"link", std::move(text)});
}

}  // namespace

MachineReport report_machine() {
  MachineReport report;
  report_host(report);
  report_mpi(report);  // forks, so it must run before the calls below, which may start threads
  report_gpus(report);
  report_links(report);
  return report;
}

}  // namespace aliquot
