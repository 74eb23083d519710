#include "checkpoint/file/hdf5_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>  // HDF5 1.14 and later declare the driver interface here
#endif

namespace aliquot {
namespace {

/// One open file. HDF5 requires that its own struct is the first member.
struct OpenFile {
  H5FD_t base{};
  Hdf5FileBackend* backend = nullptr;
  haddr_t end_of_allocation = 0;
};

OpenFile& as_open_file(H5FD_t* file) { return *reinterpret_cast<OpenFile*>(file); }
const OpenFile& as_open_file(const H5FD_t* file) { return *reinterpret_cast<const OpenFile*>(file); }

H5FD_t* driver_open(const char*, unsigned, hid_t access, haddr_t) {
  const auto* backend = static_cast<Hdf5FileBackend* const*>(H5Pget_driver_info(access));
  if (backend == nullptr) return nullptr;
  auto* file = new (std::nothrow) OpenFile;
  if (file == nullptr) return nullptr;
  file->backend = *backend;
  return &file->base;
}

herr_t driver_close(H5FD_t* file) {
  delete &as_open_file(file);
  return 0;
}

herr_t driver_query(const H5FD_t*, unsigned long* flags) {
  if (flags != nullptr) *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t driver_end_of_allocation(const H5FD_t* file, H5FD_mem_t) { return as_open_file(file).end_of_allocation; }

herr_t driver_set_end_of_allocation(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  as_open_file(file).end_of_allocation = address;
  return 0;
}

haddr_t driver_end_of_file(const H5FD_t* file, H5FD_mem_t) {
  return static_cast<haddr_t>(as_open_file(file).backend->end_bytes());
}

// The callbacks below catch all exceptions: none may propagate through the C library.
herr_t driver_read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t count, void* to) {
  constexpr auto kMaxOffset = static_cast<haddr_t>(std::numeric_limits<int64_t>::max());
  if (address > kMaxOffset || count > kMaxOffset - address) return -1;
  try {
    as_open_file(file).backend->read(static_cast<int64_t>(address), static_cast<int64_t>(count),
                                     static_cast<std::byte*>(to));
    return 0;
  } catch (...) {
    return -1;
  }
}

herr_t driver_write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t count, const void* from) {
  try {
    as_open_file(file).backend->write(static_cast<int64_t>(address), static_cast<int64_t>(count),
                                      static_cast<const std::byte*>(from));
    return 0;
  } catch (...) {
    return -1;
  }
}

herr_t driver_truncate(H5FD_t* file, hid_t, hbool_t) {
  OpenFile& open = as_open_file(file);
  try {
    if (open.backend->end_bytes() != static_cast<int64_t>(open.end_of_allocation)) {
      open.backend->truncate(static_cast<int64_t>(open.end_of_allocation));
    }
    return 0;
  } catch (...) {
    return -1;
  }
}

H5FD_class_t driver_class() {
  H5FD_class_t driver{};
#ifdef H5FD_CLASS_VERSION  // HDF5 1.14 and later have these fields
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(511);
#endif
  driver.name = "aliquot_bytes";
  driver.maxaddr = static_cast<haddr_t>(std::numeric_limits<int64_t>::max());
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(Hdf5FileBackend*);
  driver.open = driver_open;
  driver.close = driver_close;
  driver.query = driver_query;
  driver.get_eoa = driver_end_of_allocation;
  driver.set_eoa = driver_set_end_of_allocation;
  driver.get_eof = driver_end_of_file;
  driver.read = driver_read;
  driver.write = driver_write;
  driver.truncate = driver_truncate;
  const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), std::begin(driver.fl_map));
  return driver;
}

}  // namespace

void SparseMemoryBackend::read(int64_t offset, int64_t count, std::byte* to) const {
  while (count > 0) {
    const int64_t within = offset % kPage, part = std::min(count, kPage - within);
    const auto page = pages_.find(offset / kPage);
    if (page == pages_.end()) {
      std::memset(to, 0, static_cast<size_t>(part));
    } else {
      std::memcpy(to, page->second.data() + within, static_cast<size_t>(part));
    }
    offset += part, to += part, count -= part;
  }
}

void SparseMemoryBackend::write(int64_t offset, int64_t count, const std::byte* from) {
  end_bytes_ = std::max(end_bytes_, offset + count);
  while (count > 0) {
    const int64_t within = offset % kPage, part = std::min(count, kPage - within);
    auto& page = pages_.try_emplace(offset / kPage).first->second;
    std::memcpy(page.data() + within, from, static_cast<size_t>(part));
    offset += part, from += part, count -= part;
  }
}

bool set_file_backend(hid_t access, Hdf5FileBackend& backend) {
  static const H5FD_class_t driver = driver_class();
  static const hid_t id = H5FDregister(&driver);
  Hdf5FileBackend* const pointer = &backend;
  return id >= 0 && H5Pset_driver(access, id, &pointer) >= 0;
}

}  // namespace aliquot
