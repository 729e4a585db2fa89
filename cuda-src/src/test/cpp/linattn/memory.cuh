// Stands in for the device header of the same name: a copy that is done when the call returns.
#pragma once

#include <cstring>

namespace linattn {

template <int kBytes>
inline void copy_async(void* destination, const void* source, bool valid) {
  if (valid) {
    std::memcpy(destination, source, kBytes);
  } else {
    std::memset(destination, 0, kBytes);
  }
}

inline void wait_for_copies() {}

}  // namespace linattn
