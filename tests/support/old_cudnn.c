// A library with the version of cuDNN 8.9.7, which is too old.
#include <stddef.h>

__attribute__((visibility("default"))) size_t cudnnGetVersion(void) { return 8907; }
