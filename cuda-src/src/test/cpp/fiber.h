// A CUDA thread on the host: a stack of its own, and a switch to it that the operating system does not see.
//
// ThreadSanitizer takes each for a thread. A switch orders nothing for it: only a start, an end, and what says `release`
// and `acquire` of the same place do. It does not look at UNWATCHED functions, which keep the books.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define UNWATCHED
#endif

// Saves the registers that a function must keep and the stack pointer, and takes those of another stack (x86-64).
extern "C" void switch_stack(void** save, void* to);
asm(R"(
.weak switch_stack
switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

class Fiber {
 public:
  // Makes it ready to run `body` from the start.
  void start(std::function<void()> body) {
    body_ = std::move(body);
    const auto top = (reinterpret_cast<uintptr_t>(stack_.get()) + kStackBytes) & ~static_cast<uintptr_t>(15);
    void** pointer = reinterpret_cast<void**>(top) - 1;  // as aligned as behind a call
    *--pointer = reinterpret_cast<void*>(&run);
    for (int saved = 0; saved < 6; ++saved) {
      *--pointer = nullptr;
    }
    inside_ = pointer;
    ended_ = false;
    release(this);
  }
  // Runs it on until it suspends itself or ends.
  UNWATCHED void resume() {
    running = this;
    context_.enter();
    switch_stack(&outside_, inside_);
    running = nullptr;
    if (ended_) {
      acquire(this);
    }
  }
  // Of the fiber that runs.
  UNWATCHED static void suspend() {
    Fiber* const mine = running;
    mine->context_.leave();
    switch_stack(&mine->inside_, mine->outside_);
  }
  UNWATCHED bool ended() const { return ended_; }

#ifdef __SANITIZE_THREAD__
  static void release(void* place) { __tsan_release(place); }
  static void acquire(void* place) { __tsan_acquire(place); }
#else
  static void release(void*) {}
  static void acquire(void*) {}
#endif

 private:
  // What ThreadSanitizer knows of a fiber.
  class Context {
   public:
#ifdef __SANITIZE_THREAD__
    UNWATCHED void enter() {
      outside_ = __tsan_get_current_fiber();
      __tsan_switch_to_fiber(inside_, __tsan_switch_to_fiber_no_sync);
    }
    UNWATCHED void leave() { __tsan_switch_to_fiber(outside_, __tsan_switch_to_fiber_no_sync); }

   private:
    void* inside_ = __tsan_create_fiber(0);
    void* outside_ = nullptr;
#else
    void enter() {}
    void leave() {}
#endif
  };

  static constexpr size_t kStackBytes = 128 * 1024;
  static inline Fiber* running = nullptr;

  UNWATCHED static void run() {
    Fiber* const mine = running;
    acquire(mine);
    mine->body_();
    release(mine);
    mine->ended_ = true;
    suspend();
  }

  std::unique_ptr<char[]> stack_{new char[kStackBytes]};
  std::function<void()> body_;
  void* inside_ = nullptr;
  void* outside_ = nullptr;
  bool ended_ = true;
  Context context_;
};
