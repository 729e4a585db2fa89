// Of CUDA, what runs on the host wants nothing but names, which cuda_on_host.h has.
