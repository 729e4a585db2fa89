// A CUDA thread on the host: a stack of its own, and a switch to it that the operating system does not see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

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
  }
  // Runs it on until it suspends itself or ends.
  void resume() {
    running = this;
    switch_stack(&outside_, inside_);
    running = nullptr;
  }
  // Of the fiber that runs.
  static void suspend() {
    Fiber* const mine = running;
    switch_stack(&mine->inside_, mine->outside_);
  }
  bool ended() const { return ended_; }

 private:
  static constexpr size_t kStackBytes = 128 * 1024;
  static inline Fiber* running = nullptr;

  static void run() {
    Fiber* const mine = running;
    mine->body_();
    mine->ended_ = true;
    suspend();
  }

  std::unique_ptr<char[]> stack_{new char[kStackBytes]};
  std::function<void()> body_;
  void* inside_ = nullptr;
  void* outside_ = nullptr;
  bool ended_ = true;
};
