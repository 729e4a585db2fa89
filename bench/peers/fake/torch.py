"""A torch without a device, for the tests: tensors are extents, and each operation takes a millisecond of a clock.

FAKE_TORCH_BYTES: memory, beyond which a tensor is refused. FAKE_TORCH_KILLS: the signal that a sum of a tensor sends.
FAKE_TORCH_SILENT: the device answers no more.
"""

import os
import sys
import types

__version__ = "0.fake"

bool, uint8, bfloat16, float16, float32 = "bool", "uint8", "bfloat16", "float16", "float32"
_BYTES = {bool: 1, uint8: 1, bfloat16: 2, float16: 2, float32: 4}
_LIMIT = int(os.environ.get("FAKE_TORCH_BYTES", 10**15))
_KILLS = int(os.environ.get("FAKE_TORCH_KILLS", 0))


class OutOfMemoryError(RuntimeError):
    pass


class Clock:
    """Device time and memory."""

    millis = 0.0
    millis_per_operation = 1.0
    allocated = 0
    peak = 0


def _product(extents):
    product = 1
    for each in extents:
        product *= each
    return product


class Tensor:
    def __init__(self, shape, dtype=float32, device="cuda"):
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.bytes = _product(shape) * _BYTES[dtype]
        if Clock.allocated + self.bytes > _LIMIT:
            self.bytes = 0
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {_product(shape)} elements")
        Clock.allocated += self.bytes
        Clock.peak = max(Clock.peak, Clock.allocated)

    def __del__(self):
        Clock.allocated -= self.bytes

    def _same(self, *others, **options):
        Clock.millis += Clock.millis_per_operation
        shapes = [self.shape] + [other.shape for other in others if isinstance(other, Tensor)]
        rank = max(len(shape) for shape in shapes)
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        return Tensor([max(extents) for extents in zip(*padded)], self.dtype, self.device)

    __mul__ = __rmul__ = __add__ = __radd__ = __truediv__ = _same
    masked_fill = softmax = tril = triu = cumsum = copy_ = _same

    def __matmul__(self, other):
        Clock.millis += Clock.millis_per_operation
        return Tensor((*self.shape[:-1], other.shape[-1]), self.dtype, self.device)

    def sum(self, dim, keepdim=False):
        if _KILLS:
            os.kill(os.getpid(), _KILLS)
        return Tensor((*self.shape[:-1], 1), self.dtype, self.device)

    def transpose(self, i, j):
        shape = list(self.shape)
        shape[i], shape[j] = shape[j], shape[i]
        return Tensor(shape, self.dtype, self.device)

    def unsqueeze(self, dim):
        shape = list(self.shape)
        shape.insert(dim % (len(shape) + 1), 1)
        return Tensor(shape, self.dtype, self.device)

    def squeeze(self, dim):
        shape = list(self.shape)
        assert shape.pop(dim) == 1
        return Tensor(shape, self.dtype, self.device)

    def requires_grad_(self):
        return self


def randn(*shape, dtype=float32, device="cpu"):
    return Tensor(shape, dtype, device)


def zeros(count, dtype=float32, device="cpu"):
    return Tensor((count,), dtype, device)


def ones(shape, dtype=float32, device="cpu"):
    return Tensor(shape, dtype, device)


def arange(first, end, dtype=float32, device="cpu"):
    return Tensor((end - first,), dtype, device)


def empty_like(tensor):
    return Tensor(tensor.shape, tensor.dtype, tensor.device)


randn_like = empty_like


def manual_seed(seed):
    pass


class no_grad:
    def __enter__(self):
        pass

    def __exit__(self, *failure):
        pass


class _Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.millis = Clock.millis

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return later.millis - self.millis


def _synchronize():
    if "FAKE_TORCH_SILENT" in os.environ:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def _forget_peak():
    Clock.peak = Clock.allocated


def _gradients(output, inputs, gradient, retain_graph):
    assert output.shape == gradient.shape and retain_graph
    return [each * 1 for each in inputs]


def _scaled_dot_product_attention(q, k, v, is_causal):
    if q.dtype == float32:
        raise RuntimeError("No available kernel. Aborting execution.")
    return q * 1


def _kernel_choice(backend):
    return no_grad()


def _module(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


autograd = types.SimpleNamespace(grad=_gradients)
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace(allow_tf32=False)))
cuda = types.SimpleNamespace(
    Event=_Event,
    OutOfMemoryError=OutOfMemoryError,
    is_available=lambda: True,
    synchronize=_synchronize,
    memory_allocated=lambda: Clock.allocated,
    reset_peak_memory_stats=_forget_peak,
    max_memory_allocated=lambda: Clock.peak,
    empty_cache=lambda: None,
)
nn = _module(
    "torch.nn",
    functional=types.SimpleNamespace(
        scaled_dot_product_attention=_scaled_dot_product_attention, logsigmoid=lambda x: x * 1),
)
_module(
    "torch.nn.attention",
    SDPBackend=types.SimpleNamespace(FLASH_ATTENTION=1, CUDNN_ATTENTION=2, EFFICIENT_ATTENTION=3),
    sdpa_kernel=_kernel_choice,
)
