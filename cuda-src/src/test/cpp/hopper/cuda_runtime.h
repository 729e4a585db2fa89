// Of CUDA, kernels here want nothing but names, which emulator.h has.
