// linattn/memory.cuh on the host: a copy is done when its lane waits for it, and what it will write is NaN until then.
#pragma once

#include <deque>
#include <vector>

#include "emulator.h"

namespace linattn {

struct LaneCopy {
  uint32_t destination;
  const void* source;
  int bytes;
};

// The groups of a lane of the block that runs, of a cluster of at most two, the last one open.
inline std::deque<std::vector<LaneCopy>>& lane_copies() {
  static std::vector<std::deque<std::vector<LaneCopy>>> of_lanes(2 * 1024);
  auto& groups = of_lanes[emulator::block_rank() * 1024 + emulator::thread_number()];
  if (groups.empty()) {
    groups.emplace_back();
  }
  return groups;
}

inline uint32_t shared_address(const void* pointer_smem) { return emulator::address_of(pointer_smem); }

inline void copy_async_part(uint32_t destination, const void* source_gmem, int num_bytes) {
  const uint32_t nothing[4] = {~0u, ~0u, ~0u, ~0u};
  emulator::write(destination, nothing, sizeof nothing);
  lane_copies().back().push_back({destination, source_gmem, num_bytes});
}

template <int kBytes>
void copy_async(void* destination_smem, const void* source_gmem, bool valid) {
  static_assert(kBytes == 16, "no kernel here copies less");
  copy_async_part(shared_address(destination_smem), source_gmem, valid ? kBytes : 0);
}

inline void commit_copies() { lane_copies().emplace_back(); }

template <int kPending>
void wait_for_groups() {
  auto& groups = lane_copies();
  while (groups.size() > kPending + 1) {
    for (const LaneCopy& copy : groups.front()) {
      unsigned char bytes[16] = {};
      std::memcpy(bytes, copy.source, static_cast<size_t>(copy.bytes));
      emulator::write(copy.destination, bytes, sizeof bytes);
    }
    groups.pop_front();
  }
}

inline void wait_for_copies() {
  commit_copies();
  wait_for_groups<0>();
}

// At the end of a kernel: those that are left must only write zeros.
inline void end_copies() {
  for (const auto& group : lane_copies()) {
    for (const LaneCopy& copy : group) {
      if (copy.bytes > 0) {
        emulator::fail("a copy of %d bytes is under way when its lane has ended", copy.bytes);
      }
    }
  }
  lane_copies().clear();
}

}  // namespace linattn
