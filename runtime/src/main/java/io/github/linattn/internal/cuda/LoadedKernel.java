package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.CudaKernel;
import io.github.linattn.kernelgen.KernelEntry;

/** A kernel that can be launched, and how the manifest says to launch it. */
record LoadedKernel(KernelEntry entry, CudaKernel kernel) {}
