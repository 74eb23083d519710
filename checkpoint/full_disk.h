#pragma once
// A disk with no room left, for a fault that is staged.

#include <cerrno>

#include "kernels/system/file_system.h"

namespace aliquot {

/// The system's own, but nothing can be written or reserved.
class FullDisk final : public FileSystem {
 public:
  ssize_t pwrite(int, const void*, size_t, off_t) override { return refuse(); }
  int allocate(int, off_t) override { return refuse(); }

 private:
  static int refuse() {
    errno = ENOSPC;
    return -1;
  }
};

}  // namespace aliquot
